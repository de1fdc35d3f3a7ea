"""Engine steps as batches: from traces, from a sampler, and for timing."""
