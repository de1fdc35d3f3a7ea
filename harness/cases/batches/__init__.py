"""Batches as numbers: drawn by Hypothesis, laid out as tensors."""
