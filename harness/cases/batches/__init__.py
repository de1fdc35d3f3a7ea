"""Batches in numbers, drawn by Hypothesis and laid out as tensors."""
