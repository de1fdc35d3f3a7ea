"""Benchmarks of `pytest --benchmark`: collected by the pytest plugin only."""
