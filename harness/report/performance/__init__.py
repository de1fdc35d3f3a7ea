"""The performance section of a report."""
