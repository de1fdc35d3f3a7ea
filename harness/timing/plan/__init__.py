"""Selection of what is timed."""
