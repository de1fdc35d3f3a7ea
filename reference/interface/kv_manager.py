"""Arguments and results of a KV-cache manager: groups, requests, blocks (SPEC.md section 16)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share a block table."""

    kind: Literal["full", "window", "chunked", "mamba"]
    block_size: int
    """Tokens per block."""
    window: int = 0
    """Keys that a query of kind "window" sees, itself included, or tokens of a chunk of kind
    "chunked", of which a query sees those before itself; 0 of the others."""
    draft: bool = False
    """True if the layers are a drafter's: their keys depend on the next token too."""


@dataclass
class CacheRequest:
    """The tokens of a request, and how many of them have keys in the cache."""

    request_id: str
    token_ids: list[int]
    """Tokens of the prompt and of the output."""
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    """Computed tokens of steps whose results are not known: drafts among them may be rejected."""
    num_prompt_tokens: int = 0
    """Tokens of the prompt, for a manager with a retention interval; 0 if it has no replay."""


@dataclass(frozen=True)
class CacheBlocks:
    """Blocks of one request, a list for each group."""

    blocks: tuple[list[int], ...]

    def get_block_ids(self) -> tuple[list[int], ...]:
        """Return the ids of the blocks."""
        return self.blocks
