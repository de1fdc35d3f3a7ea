"""Loops over requests and tokens on the host, compiled by numba at their first call."""
