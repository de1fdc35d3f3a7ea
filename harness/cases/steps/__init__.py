"""Engine steps as cases: from traces, from a sampler, and for timing."""
