"""Samples to figures, verdicts and baselines."""
