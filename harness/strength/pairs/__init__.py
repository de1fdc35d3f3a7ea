"""Bugs that shipped, each as a pair: a backend with the bug and the same backend without it."""
