"""Batches, differences and sequences as SVG pictures."""
