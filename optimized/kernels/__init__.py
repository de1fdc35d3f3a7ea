"""Triton kernels, one a file, each with the function that launches it.

Importing a kernel imports Triton, so entry points import them where they launch.
"""
