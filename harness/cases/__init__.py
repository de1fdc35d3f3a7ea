"""Sources of batches (strategies, traces, saved cases) and their layout as tensors."""
