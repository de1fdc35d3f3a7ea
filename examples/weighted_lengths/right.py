"""Weighted lengths in float32."""


def weighted_lengths(seq_lens, weights):
    """Return the length of each row times its weight, float32."""
    return seq_lens * weights
