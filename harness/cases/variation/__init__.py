"""Changes of well-formed cases: pairs of critical features, and random variations."""
