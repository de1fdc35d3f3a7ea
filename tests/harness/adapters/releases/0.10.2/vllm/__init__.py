"""A stand-in for vLLM 0.10.2: the modules that the adapter reads, a few lines each."""
