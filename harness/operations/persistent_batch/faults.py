"""Ways to misuse a `PersistentBatch` that already holds requests (SPEC.md section 7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Call, Fault
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.interface import MetadataError


def _size(position: int, field: str, value: Any, error: type[Exception] = MetadataError) -> Fault:
    def spoil(call: Call) -> None:
        call.args[position] = value

    return Fault(field=field, spoil=spoil, error=error)


_Deed = Callable[[Any, dict[str, Any]], Any]
"""What is done to a batch, by the facts of its call."""


def _bad(
    field: str,
    do: _Deed,
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda case: case.num_requests > 0,
    first: _Deed = lambda _batch, _facts: None,
) -> Fault:
    """`do` must raise, after `first` has made the batch one of which it asks too much."""

    def spoil(call: Call) -> None:
        call.facts["first"], call.facts["bad"] = first, do

    return Fault(field=field, spoil=spoil, error=error, applies=applies)


def _always(_case: Case) -> bool:
    return True


def _build(change: dict[str, Any], *padding: Any) -> _Deed:
    """Build with a changed schedule."""
    return lambda batch, facts: batch.build(facts["scheduled"] | change, *padding)


def _fill_rows(batch: Any, _facts: dict[str, Any]) -> None:
    for row in range(len(batch.req_ids), batch.max_num_reqs):
        batch.add_request(("one more", row), [])


def _make_hole(batch: Any, facts: dict[str, Any]) -> None:
    batch.remove_request("request-0")
    del facts["scheduled"]["request-0"]


def _fill_columns(batch: Any, _facts: dict[str, Any]) -> None:
    """All columns of one request live, which then has room for more than the slot buffer."""
    batch.remove_request("request-0")
    batch.add_request("request-0", [7] * batch.max_num_blocks)


def _overfill(batch: Any, facts: dict[str, Any]) -> None:
    batch.build(facts["scheduled"] | {"request-0": batch.max_num_tokens + 1})


def _holds_more_than_the_buffer(case: Case) -> bool:
    """Whether one row has room for more tokens than the slot buffer."""
    if not case.num_requests:
        return False
    batch = batch_of(case)
    columns = max(1, max(map(len, batch.blocks)) + batch.spare_columns)
    tokens = max(1, batch.num_tokens + batch.padded_tokens + batch.spare_slots)
    return columns * batch.block_size > tokens


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


FAULTS = {
    "no rows": _size(0, "max_num_reqs", 0),
    "no tokens": _size(1, "max_num_tokens", 0),
    "no columns": _size(2, "max_num_blocks", 0),
    "block size of 0": _size(3, "block_size", 0),
    "block size of another type": _size(3, "block_size", 4.0, TypeError),
    "sequences beyond int32": _size(2, "max_num_blocks", 2**31),
    "unknown device": _size(4, "device", "drum"),
    "request added twice": _bad("req_id", lambda b, _: b.add_request("request-0", [])),
    "no id": _bad("req_id", lambda b, _: b.add_request(None, []), applies=_always),
    "no row left": _bad(
        "num_reqs", lambda b, _: b.add_request("one", []), applies=_always, first=_fill_rows
    ),
    "more blocks than columns": _bad(
        "block_ids",
        lambda b, _: b.append_blocks("request-0", [1] * (b.max_num_blocks + 1)),
    ),
    "negative block": _bad("block_ids", lambda b, _: b.append_blocks("request-0", [-1])),
    "block beyond int32": _bad("block_ids", lambda b, _: b.append_blocks("request-0", [2**31])),
    "blocks of another type": _bad(
        "block_ids", lambda b, _: b.append_blocks("request-0", [1.0]), TypeError
    ),
    "blocks for an unknown request": _bad(
        "req_id", lambda b, _: b.append_blocks("nobody", [1]), applies=_always
    ),
    "removal of an unknown request": _bad(
        "req_id", lambda b, _: b.remove_request("nobody"), applies=_always
    ),
    "swap out of range": _bad("j", lambda b, _: b.swap_states(0, len(b.req_ids))),
    "swap from the end": _bad("i", lambda b, _: b.swap_states(-1, 0)),
    "swap of another type": _bad("j", lambda b, _: b.swap_states(0, "b"), TypeError),
    "step with a hole": _bad("req_ids", _build({}), first=_make_hole),
    "request without an entry": _bad("num_scheduled_tokens", lambda b, _: b.build({})),
    "entry without a request": _bad("num_scheduled_tokens", _build({"nobody": 1}), applies=_always),
    "negative tokens": _bad("num_scheduled_tokens", _build({"request-0": -1})),
    "tokens of another type": _bad("num_scheduled_tokens", _build({"request-0": "1"}), TypeError),
    "schedule of another type": _bad(
        "num_scheduled_tokens", lambda b, _: b.build([1]), TypeError, _always
    ),
    "tokens beyond the blocks (K14)": _bad("num_blocks", _build({"request-0": 2**20})),
    "more tokens than the buffers": _bad(
        "num_scheduled_tokens",
        _overfill,
        applies=_holds_more_than_the_buffer,
        first=_fill_columns,
    ),
    "fewer padded rows than requests": _bad("num_padded_reqs", _build({}, 0)),
    "more padded rows than the buffers": _bad(
        "num_padded_reqs", _build({}, 2**20), applies=_always
    ),
    "fewer padded tokens than tokens": _bad(
        "num_padded_tokens", _build({}, None, 0), applies=_has_tokens
    ),
    "more padded tokens than the buffers": _bad(
        "num_padded_tokens", _build({}, None, 2**30), applies=_always
    ),
    "advance beyond the blocks": _bad(
        "num_blocks", lambda b, f: b.advance(f["scheduled"] | {"request-0": 2**20})
    ),
    "dummy of more rows than the buffers": _bad(
        "num_reqs", lambda b, _: b.build_dummy(b.max_num_reqs + 1, 1), applies=_always
    ),
    "dummy of more tokens than the buffers": _bad(
        "num_tokens", lambda b, _: b.build_dummy(1, b.max_num_tokens + 1), applies=_always
    ),
    "dummy tokens without a request": _bad(
        "num_tokens", lambda b, _: b.build_dummy(0, 1), applies=_always
    ),
}
