"""Chunks of context that latent attention reads through a workspace (SPEC.md section 22)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["ChunkedContext", "ContextChunk"]


@dataclass
class ContextChunk:
    """Contexts of adjacent requests, or parts of them; tensors are int32, lengths in tokens."""

    request_slice: slice
    """Requests of the chunk."""
    token_slice: slice
    """Query tokens of these requests."""
    continuation_token_end: int
    """End of the first request's query tokens."""
    is_continuation: bool
    """True if a part of the first request's context is in an earlier chunk."""
    query_start_loc: torch.Tensor
    """Offsets of the query tokens, from 0."""
    starts: torch.Tensor
    """First row of each context in the cache of a rank."""
    seq_lens: torch.Tensor
    """Rows of each context, of all ranks."""
    cu_seq_lens: torch.Tensor
    """Offsets of these rows."""
    token_to_seq: torch.Tensor
    """Request of each of these rows, from 0."""
    padded_local_seq_lens: list[int] | None = None
    """Rows of each context that a rank gathers, whole turns; None of a single rank, as below."""
    padded_local_cu_seq_lens: torch.Tensor | None = None
    """Offsets of these rows."""
    local_starts: list[int] | None = None
    """First row of each context in the cache of a rank."""


@dataclass
class ChunkedContext:
    """All chunks of a step's prefills."""

    chunks: list[ContextChunk]
    empty_token_slices: list[slice]
    """Query tokens of the requests without context."""
