"""Micro-batch (ubatch) slicing (SPEC.md section 3)."""
