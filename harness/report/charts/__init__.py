"""Timings as SVG charts, each with a table of the same values."""
