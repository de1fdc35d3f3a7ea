"""Guarded memory that the tensors of a call lie in."""
