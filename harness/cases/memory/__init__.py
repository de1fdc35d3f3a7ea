"""Guarded memory for the tensors of a call."""
