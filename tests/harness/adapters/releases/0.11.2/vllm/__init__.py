"""A stand-in for vLLM 0.11.2: the modules that the adapter reads, a few lines each."""
