"""A continuous-batching scheduler: requests in, engine steps out."""
