"""Stand-ins for the engine objects that operations read."""
