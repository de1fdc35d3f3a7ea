"""A buffer of tokens: a class whose methods are steps, called in any order."""

from typing import Annotated

import torch

from attnproof.define import Array, Int, operation

Tokens = Annotated[torch.Tensor, Array(shape=("N",), least=0, below=50_000)]
Some = Annotated[torch.Tensor, Array(shape=("?",))]  # the values decide the size
Count = Annotated[int, Int(below=65)]


@operation(state=("num_tokens",))  # compared after each step
class TokenBuffer:
    """Keep the last token ids of a stream."""

    def __init__(self, capacity: Annotated[int, Int(least=1, below=65)]) -> None:
        self.capacity = capacity
        self.kept: list[int] = []
        self.num_tokens = 0

    def append(self, token_ids: Tokens) -> None:
        """Append token ids; the oldest ones beyond the capacity go."""
        self.kept = [*self.kept, *token_ids.tolist()][-self.capacity :]
        self.num_tokens = len(self.kept)

    def last(self, count: Count) -> Some:
        """Return the last token ids, oldest first; fewer if fewer are kept."""
        first = max(0, len(self.kept) - count)
        return torch.tensor(self.kept[first:], dtype=torch.int64)

    def reset(self) -> None:
        """Remove all."""
        self.kept = []
        self.num_tokens = 0
