"""Other people's engines as candidates."""
