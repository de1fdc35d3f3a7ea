"""Launches of the kernels of request slots (SPEC.md section 13), to compile them without a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .advance import advance_on_device
from .combined_tokens import combine_on_device
from .expanded_rows import expand_on_device
from .gather_block_tables import gather_on_device
from .group_slots import write_group_slots
from .post_update import update_on_device
from .prefill_inputs import write_prefill_inputs
from .staged_writes import write_staged
from .step_positions import write_positions
from .token_counts import count_on_device

Launch = Callable[[], object]
_I32, _I64 = torch.int32, torch.int64
_REQUESTS, _TOKENS, _COLUMNS = 64, 4000, 500


def runner_launches() -> dict[str, Launch]:
    """Return each launch by a name in words."""
    return {**_block_tables(), **_runner_inputs(), **_runner_update()}


def _meta(*shape: int, dtype: torch.dtype = _I32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _block_tables() -> dict[str, Launch]:
    """Return the launches of two KV-cache groups, on one rank and on one of four."""
    tables, out = _meta(2, dtype=torch.uint64), _meta(2, dtype=torch.uint64)
    layout = tuple(_meta(2) for _ in range(4))
    num_blocks = _meta(2, _REQUESTS)

    def gather(dtype: torch.dtype) -> Launch:
        rows, widths = _meta(_REQUESTS, dtype=dtype), layout[0]
        return lambda: gather_on_device(rows, tables, out, widths, num_blocks, _REQUESTS, _COLUMNS)

    def slots(dtype: torch.dtype, ranks: int = 1) -> Launch:
        rows, starts = _meta(_REQUESTS, dtype=dtype), _meta(_REQUESTS + 1)
        positions, out_slots = _meta(_TOKENS, dtype=_I64), _meta(2, _TOKENS, dtype=_I64)
        turns = (ranks, ranks - 1, 16)
        return lambda: write_group_slots(
            rows, starts, positions, tables, layout, num_blocks, turns, out_slots
        )

    return {
        "block tables, int32": gather(_I32),
        "block tables, int64": gather(_I64),
        "slots of groups, int32": slots(_I32),
        "slots of groups, int64": slots(_I64),
        "slots of groups, four ranks": slots(_I32, 4),
        "staged block ids": lambda: write_staged(_meta(100), 8, tables, layout[0], num_blocks),
    }


def _runner_inputs() -> dict[str, Launch]:
    def launch(which: str, dtype: torch.dtype = _I32) -> Launch:
        rows, starts = _meta(_REQUESTS, dtype=dtype), _meta(_REQUESTS + 1)
        lengths, seq_lens = _meta(_REQUESTS), _meta(_REQUESTS)
        input_ids, history = _meta(_TOKENS), _meta(_REQUESTS, 8192)
        last, drafts = _meta(_REQUESTS, 1, dtype=_I64), _meta(_REQUESTS, 3, dtype=_I64)
        logits_indices = _meta(4 * _REQUESTS, dtype=_I64)
        slots, places = _meta(4 * _REQUESTS, dtype=dtype), _meta(4 * _REQUESTS)
        return {
            "positions": lambda: write_positions(
                rows, starts, lengths, _meta(_TOKENS, dtype=_I64), seq_lens
            ),
            "prompt tokens": lambda: write_prefill_inputs(
                input_ids, _meta(1, _REQUESTS), rows, starts, history, lengths, lengths
            ),
            "tokens to verify": lambda: combine_on_device(
                input_ids, rows, last, starts, seq_lens, lengths, drafts, starts, 1, logits_indices
            ),
            "rows of logits": lambda: expand_on_device(rows, starts, slots, places),
        }[which]

    names = ("positions", "prompt tokens", "tokens to verify", "rows of logits")
    return {
        f"{name}, {word}": launch(name, dtype)
        for name in names
        for word, dtype in (("int32", _I32), ("int64", _I64))
    }


def _runner_update() -> dict[str, Launch]:
    def update(*, counted: bool) -> Launch:
        rows, lengths = _meta(_REQUESTS), _meta(_REQUESTS)
        counts = _meta(_REQUESTS, 32000) if counted else None
        starts = _meta(_REQUESTS + 1) if counted else None
        last, sampled = _meta(_REQUESTS, 1, dtype=_I64), _meta(_REQUESTS, 4, dtype=_I64)
        history = _meta(_REQUESTS, 8192)
        return lambda: update_on_device(
            rows, lengths, last, counts, sampled, lengths, lengths, starts, history, lengths
        )

    lengths, starts = _meta(_REQUESTS), _meta(_REQUESTS + 1)
    return {
        "update of slots": update(counted=True),
        "update of slots, nothing counted": update(counted=False),
        "sampled and rejected tokens": lambda: count_on_device(
            lengths, lengths, lengths, starts, lengths, lengths
        ),
        "computed tokens": lambda: advance_on_device(lengths, lengths, starts),
    }
