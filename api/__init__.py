"""The Python API and the pytest plugin, above the harness; `attnproof` exposes its names."""
