"""K24, erratum E14: decodes go to a library that knows neither sliding window nor soft cap."""

from __future__ import annotations

from typing import Any

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K24",
    "decode_attention",
    "erratum E14",
    ("sliding window ignored", "soft cap ignored", "sliding window and soft cap ignored"),
)


def decode_attention(
    *tensors: Any,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    **rest: Any,
) -> None:
    """Takes bad input for bad, then computes again without either."""
    attend: Any = reference.decode_attention
    bounds = {"sliding_window": sliding_window, "logits_soft_cap": logits_soft_cap}
    attend(*tensors, **bounds, **rest)
    attend(*tensors, **rest)
