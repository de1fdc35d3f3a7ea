"""Queries, keys, values and caches of one attention layer."""
