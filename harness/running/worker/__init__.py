"""Code of a worker process: calls the candidate."""
