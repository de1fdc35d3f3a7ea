"""A buffer of tokens as a ring."""

import torch


class TokenBuffer:
    """Keep the last token ids of a stream."""

    def __init__(self, capacity):
        self.ring = torch.zeros(capacity, dtype=torch.int64)
        self.end = self.num_tokens = 0

    def append(self, token_ids):
        """Append token ids; the oldest ones beyond the capacity go."""
        kept = token_ids[-len(self.ring) :]
        places = (self.end + torch.arange(len(kept))) % len(self.ring)
        self.ring[places] = kept.long()
        self.end = (self.end + len(kept)) % len(self.ring)
        self.num_tokens = min(self.num_tokens + len(kept), len(self.ring))

    def last(self, count):
        """Return the last token ids, oldest first; fewer if fewer are kept."""
        count = min(count, self.num_tokens)
        return self.ring[(self.end - count + torch.arange(count)) % len(self.ring)]

    def reset(self):
        """Remove all."""
        self.end = self.num_tokens = 0
