"""Where cases come from: strategies, boundaries, traces; and how they become tensors."""
