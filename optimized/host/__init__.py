"""Loops over requests and tokens on the host, compiled by numba on the first call."""
