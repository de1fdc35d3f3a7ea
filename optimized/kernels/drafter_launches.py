"""Launches of a drafter's kernels, which `launches` compiles ahead of time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from .drafter_inputs import expand_inputs_on_device
from .drafter_kept_tokens import keep_tokens_on_device
from .drafter_next_tokens import next_tokens_on_device
from .drafter_rejected import count_rejected_on_device
from .drafter_slots import new_slots_on_device
from .drafter_step import step_on_device

Launch = Callable[[], object]
_I32: Final = torch.int32
_I64: Final = torch.int64
_REQUESTS: Final = 64
_TOKENS: Final = 400
_DRAFTS: Final = 4


def drafter_launches() -> dict[str, Launch]:
    """Return every launch by its name."""
    offsets, lengths = _meta(_REQUESTS + 1), _meta(_REQUESTS)
    slots, table = _meta(_TOKENS, dtype=_I64), _meta(_REQUESTS, 500)
    mask = _meta(_TOKENS, dtype=torch.bool)
    positions = _meta(_TOKENS, dtype=_I64)
    wide = _meta(_REQUESTS + 1, dtype=_I64)
    return {
        "next draft token": lambda: step_on_device(
            positions[:_REQUESTS], table, lengths, 16, 8192, positions[:_REQUESTS], slots, 72
        ),
        "next tokens": lambda: next_tokens_on_device(
            _meta(_REQUESTS, _DRAFTS + 1), mask, _meta(_REQUESTS), 128_000
        ),
        "kept tokens, int32": lambda: keep_tokens_on_device(
            offsets, offsets, lengths, slots, _TOKENS
        ),
        "kept tokens, int64": lambda: keep_tokens_on_device(wide, wide, lengths, slots, _TOKENS),
        "rejected tokens": lambda: count_rejected_on_device(lengths, lengths, offsets),
        "slots of new tokens": lambda: new_slots_on_device(
            offsets, table, positions, mask, 16, _DRAFTS, 8192
        ),
        "drafter inputs, shifted": _expand(shift=True),
        "drafter inputs, not shifted": _expand(shift=False),
    }


def _expand(*, shift: bool) -> Launch:
    outputs = _TOKENS + _REQUESTS * _DRAFTS
    return lambda: expand_inputs_on_device(
        _meta(_TOKENS),
        _meta(_TOKENS, dtype=_I64),
        _meta(_REQUESTS),
        _meta(outputs),
        _meta(outputs, dtype=_I64),
        _meta(outputs, dtype=torch.bool),
        _meta(outputs, dtype=torch.bool),
        _meta(_REQUESTS * _DRAFTS),
        _meta(_TOKENS),
        _meta(_REQUESTS + 1),
        _meta(_REQUESTS),
        0,
        1,
        _TOKENS,
        _DRAFTS,
        shift,
    )


def _meta(*shape: int, dtype: torch.dtype = _I32) -> torch.Tensor:
    """Return a tensor without memory."""
    return torch.empty(shape, dtype=dtype, device="meta")
