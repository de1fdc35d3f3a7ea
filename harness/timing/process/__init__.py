"""Code of the timing process."""
