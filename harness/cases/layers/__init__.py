"""Inputs of one attention layer: queries, keys, values and caches."""
