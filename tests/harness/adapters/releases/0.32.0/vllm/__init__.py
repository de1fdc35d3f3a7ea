"""A stand-in for vLLM 0.32.0: the modules that the adapter reads, a few lines each."""
