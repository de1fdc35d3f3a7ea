"""Code of the process that takes timings."""
