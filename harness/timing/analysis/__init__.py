"""Results from samples: timings, comparisons, noise and baselines."""
