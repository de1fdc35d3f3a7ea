"""K24, erratum E14: decodes go to a library that knows neither sliding window nor soft cap."""

from __future__ import annotations

from typing import Any

import torch

import reference
from harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K24",
    "decode_attention",
    "erratum E14",
    ("sliding window ignored", "soft cap ignored", "sliding window and soft cap ignored"),
)


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    *,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    **rest: Any,
) -> None:
    """Takes bad input for bad, then computes again without either."""
    tensors = (query, key_cache, value_cache, seq_lens, block_table, scale)
    bounds: dict[str, Any] = {"sliding_window": sliding_window, "logits_soft_cap": logits_soft_cap}
    reference.decode_attention(*tensors, **bounds, **rest)
    reference.decode_attention(*tensors, **rest)
