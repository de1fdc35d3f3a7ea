"""Faults of `BlockTables`: wrong sizes, and arguments that its methods must refuse."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value

_GROUPS = ("max_num_blocks_per_group",)
_SLOTS = ("max_num_reqs",)
_ROWS = ("gathered", "idx_mapping")
"""The rows that are gathered, and those that get slots."""


def _has_rows(case: Case) -> bool:
    return case.num_requests > 0


def _is_persistent(case: Case) -> bool:
    """True if the buffers are not the caller's, into which the rows are gathered first."""
    return not case.params["own"]


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0 and _is_persistent(case)


def _has_offsets(case: Case) -> bool:
    return _has_rows(case) and _is_persistent(case)


def _is_split(case: Case) -> bool:
    """True if a turn of twice the first group's block does not divide its blocks."""
    return bool(case.params["cp_size"] > 1 and case.params["sharded"])


def _appended(change: Any, field: str, error: type[Exception] | None = None) -> Fault:
    """Return a fault of `append_block_ids`, from the widths of the groups to its arguments."""
    reads = ("max_num_blocks_per_group",)
    if error is None:
        return Fault("appended", lambda _, widths: change(widths), field, reads=reads)
    return Fault("appended", lambda _, widths: change(widths), field, error, reads=reads)


def _first(widths: list[int], value: Any) -> tuple[Any, ...]:
    return (value, *([] for _ in widths[1:]))


def _last_too_long(widths: list[int], *, overwrite: bool) -> tuple[Any, ...]:
    """Return an append that fits into all groups but the last."""
    ids = [[7] if overwrite else [] for _ in widths[:-1]]
    return (0, (*ids, [7] * (widths[-1] + 1)), overwrite)


FAULTS = {
    "no slots": wrong_value("max_num_reqs", 0),
    "no tokens": wrong_value("max_num_batched_tokens", 0),
    "tokens of another type": wrong_type("max_num_batched_tokens"),
    "block size of 0": Fault("block_sizes", lambda sizes: [0, *sizes[1:]]),
    "widths of other groups": Fault("max_num_blocks_per_group", lambda widths: [*widths, 3]),
    "no columns": Fault("max_num_blocks_per_group", lambda widths: [*widths[:-1], 0]),
    "no ranks": wrong_value("cp_size", 0),
    "rank beyond the ranks": Fault("cp_rank", lambda _, size: size, reads=("cp_size",)),
    "negative rank": wrong_value("cp_rank", -1),
    "turn of 0": wrong_value("cp_interleave", 0),
    "turn that does not divide the blocks": Fault(
        "cp_interleave", lambda _, sizes: 2 * sizes[0], applies=_is_split, reads=("block_sizes",)
    ),
    "flags of other groups": Fault(
        "slot_mapping_enabled", lambda _, sizes: [True] * (len(sizes) + 1), reads=("block_sizes",)
    ),
    "shards of other groups": Fault(
        "dcp_sharded", lambda _, sizes: [True] * (len(sizes) - 1), reads=("block_sizes",)
    ),
    "flag of another type": Fault(
        "dcp_sharded", lambda _, sizes: [1] * len(sizes), error=TypeError, reads=("block_sizes",)
    ),
    "append to a slot that does not exist": Fault(
        "appended",
        lambda _, widths, slots: (slots, _first(widths, [7]), False),
        "req_index",
        reads=(*_GROUPS, *_SLOTS),
    ),
    "append to a negative slot": _appended(lambda w: (-1, _first(w, [7]), False), "req_index"),
    "append to other groups": _appended(lambda w: (0, _first(w, [7])[1:], False), "new_block_ids"),
    "negative block": _appended(lambda w: (0, _first(w, [-1]), True), "new_block_ids"),
    "block beyond int32": _appended(lambda w: (0, _first(w, [2**31]), True), "new_block_ids"),
    "blocks of another type": _appended(
        lambda w: (0, _first(w, [1.0]), True), "new_block_ids", TypeError
    ),
    "more blocks than the row holds": _appended(
        lambda w: _last_too_long(w, overwrite=False), "new_block_ids", RuntimeError
    ),
    "row replaced by more blocks than it holds": _appended(
        lambda w: _last_too_long(w, overwrite=True), "new_block_ids", RuntimeError
    ),
    "slot that does not exist": Fault(
        _ROWS,
        lambda gathered, rows, slots: (
            torch.full_like(gathered, slots),
            torch.full_like(rows, slots),
        ),
        "idx_mapping",
        applies=_has_rows,
        reads=_SLOTS,
        cpu_only=True,
    ),
    "slot below -1": Fault(
        _ROWS,
        lambda gathered, rows: (torch.full_like(gathered, -2), torch.full_like(rows, -2)),
        "idx_mapping",
        applies=_has_rows,
        cpu_only=True,
    ),
    "float rows": Fault(
        _ROWS, lambda gathered, rows: (gathered.float(), rows.float()), "idx_mapping"
    ),
    "2-D rows": Fault(_ROWS, lambda gathered, rows: (gathered[None], rows[None]), "idx_mapping"),
    "rows of another type": wrong_type("gathered", "idx_mapping"),
    "row without slots that does not exist": Fault(
        "idx_mapping",
        torch.full_like,
        applies=lambda case: _has_rows(case) and _is_persistent(case),
        reads=_SLOTS,
        cpu_only=True,
    ),
    "fewer padded rows than rows": Fault(
        "num_reqs_padded", lambda _, mapping: len(mapping) - 1, reads=("idx_mapping",)
    ),
    "more padded rows than the buffers": Fault(
        "num_reqs_padded", lambda _, slots: slots + 1, reads=_SLOTS
    ),
    "offsets of other rows": Fault(
        "query_start_loc",
        lambda starts, mapping: starts[: len(mapping)],
        applies=_is_persistent,
        reads=("idx_mapping",),
    ),
    "int64 offsets": Fault("query_start_loc", torch.Tensor.long, applies=_is_persistent),
    "offsets that fall": Fault(
        "query_start_loc",
        lambda starts: torch.cat([starts[:1], starts[1:] - 1 - starts[-4]]),
        applies=_has_offsets,
        cpu_only=True,
    ),
    "int32 positions": Fault("positions", torch.Tensor.int, applies=_is_persistent),
    "positions of fewer tokens": Fault(
        "positions",
        lambda positions: positions[:0],
        "query_start_loc",
        applies=_has_tokens,
        cpu_only=True,
    ),
    "negative position": Fault(
        "positions", lambda positions: -1 - positions, applies=_has_tokens, cpu_only=True
    ),
    "padded length below the tokens": Fault(
        "num_tokens_padded",
        lambda _: 0,
        "query_start_loc",
        applies=_has_tokens,
        cpu_only=True,
    ),
    "more padded tokens than the buffers": wrong_value("num_tokens_padded", 2**30, _is_persistent),
    "dummy step of more rows than the buffers": Fault(
        "dummy_reqs",
        lambda _, slots: slots + 1,
        "num_reqs",
        applies=_is_persistent,
        reads=_SLOTS,
    ),
    "dummy step of more tokens than the buffers": Fault(
        "dummy_tokens",
        lambda _, tokens: tokens + 1,
        "num_tokens",
        applies=_is_persistent,
        reads=("max_num_batched_tokens",),
    ),
    "dummy step of negative rows": Fault(
        "dummy_reqs", lambda _: -1, "num_reqs", applies=_is_persistent
    ),
    "dummy step of negative tokens": Fault(
        "dummy_tokens", lambda _: -1, "num_tokens", applies=_is_persistent
    ),
    "int32 slots": Fault(
        "slots",
        lambda _, groups: torch.zeros(len(groups), 2**10, dtype=torch.int32),
        "out",
        applies=_is_persistent,
        reads=_GROUPS,
    ),
    "tables of another width": Fault(
        "out",
        lambda _, widths, slots: tuple(
            torch.zeros(slots, width + 1, dtype=torch.int32) for width in widths
        ),
        reads=(*_GROUPS, *_SLOTS),
    ),
}
