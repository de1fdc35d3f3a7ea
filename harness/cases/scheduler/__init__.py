"""A continuous-batching scheduler that turns requests into engine steps."""
