"""Processes that run a candidate's code, and everything that they start."""
