"""Stand-ins for the objects of an engine that operations read."""
