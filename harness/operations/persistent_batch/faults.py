"""Faults of `PersistentBatch`: wrong sizes, and misuse of a batch with requests (section 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import wrong_value
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.interface import MetadataError

Action = Callable[[Any, dict[str, Any]], Any]
"""Call on a batch, given the batch and the tokens of each request in the step."""


class Misuse(NamedTuple):
    """A call that a batch with requests must refuse."""

    prepare: Action
    """Action before the call, which makes it wrong; may change the schedule in place."""
    call: Action


def _misuse(
    field: str,
    call: Action,
    error: type[Exception] = MetadataError,
    applies: Callable[[Case], bool] = lambda case: case.num_requests > 0,
    prepare: Action = lambda _batch, _scheduled: None,
) -> Fault:
    return Fault("misuse", lambda _: Misuse(prepare, call), field, error, applies)


def _always(_case: Case) -> bool:
    return True


def _build(change: dict[Any, Any], *padding: Any) -> Action:
    """Return the build of a changed schedule."""
    return lambda batch, scheduled: batch.build(scheduled | change, *padding)


def _fill_rows(batch: Any, _scheduled: dict[str, Any]) -> None:
    for row in range(len(batch.req_ids), batch.max_num_reqs):
        batch.add_request(("one more", row), [])


def _make_hole(batch: Any, scheduled: dict[str, Any]) -> None:
    batch.remove_request("request-0")
    del scheduled["request-0"]


def _fill_columns(batch: Any, _scheduled: dict[str, Any]) -> None:
    """Give one request a block in each column: its blocks hold more tokens than the buffers."""
    batch.remove_request("request-0")
    batch.add_request("request-0", [7] * batch.max_num_blocks)


def _overfill(batch: Any, scheduled: dict[str, Any]) -> None:
    batch.build(scheduled | {"request-0": batch.max_num_tokens + 1})


def _build_another_request(batch: Any, scheduled: dict[str, Any]) -> Any:
    """Build a step of as many requests, one of them unknown, with 0 tokens for others."""
    others = {name: tokens for name, tokens in scheduled.items() if name != "request-0"}
    return batch.build(defaultdict(int, others | {"unknown": 1}))


def _holds_more_than_the_buffer(case: Case) -> bool:
    """True if one row has room for more tokens than the slot buffer."""
    if not case.num_requests:
        return False
    batch = batch_of(case)
    columns = max(1, max(map(len, batch.blocks)) + batch.spare_columns)
    tokens = max(1, batch.num_tokens + batch.padded_tokens + batch.spare_slots)
    return columns * batch.block_size > tokens


def _has_room(case: Case) -> bool:
    """True if the batch has a free row."""
    return int(case.params["spare_rows"]) > 0


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


FAULTS = {
    "no rows": wrong_value("max_num_reqs", 0),
    "no tokens": wrong_value("max_num_tokens", 0),
    "no columns": wrong_value("max_num_blocks", 0),
    "block size of 0": wrong_value("block_size", 0),
    "block size of another type": Fault("block_size", lambda _: 4.0, error=TypeError),
    "sequences beyond int32": wrong_value("max_num_blocks", 2**31),
    "unknown device": wrong_value("device", "drum"),
    "request added twice": _misuse("req_id", lambda b, _: b.add_request("request-0", [])),
    "no id": _misuse("req_id", lambda b, _: b.add_request(None, []), applies=_always),
    "id that is not hashable": _misuse(
        "req_id", lambda b, _: b.add_request(["one"], []), TypeError, _has_room
    ),
    "negative computed tokens": _misuse(
        "num_computed_tokens", lambda b, _: b.add_request("one", [], -1), applies=_has_room
    ),
    "computed tokens of another type": _misuse(
        "num_computed_tokens", lambda b, _: b.add_request("one", [1], 1.0), TypeError, _has_room
    ),
    "no row left": _misuse(
        "num_reqs", lambda b, _: b.add_request("one", []), applies=_always, prepare=_fill_rows
    ),
    "more blocks than columns": _misuse(
        "block_ids",
        lambda b, _: b.append_blocks("request-0", [1] * (b.max_num_blocks + 1)),
    ),
    "negative block": _misuse("block_ids", lambda b, _: b.append_blocks("request-0", [-1])),
    "block beyond int32": _misuse("block_ids", lambda b, _: b.append_blocks("request-0", [2**31])),
    "blocks of another type": _misuse(
        "block_ids", lambda b, _: b.append_blocks("request-0", [1.0]), TypeError
    ),
    "blocks for an unknown request": _misuse(
        "req_id", lambda b, _: b.append_blocks("unknown", [1]), applies=_always
    ),
    "removal of an unknown request": _misuse(
        "req_id", lambda b, _: b.remove_request("unknown"), applies=_always
    ),
    "swap out of range": _misuse("j", lambda b, _: b.swap_states(0, len(b.req_ids))),
    "swap from the end": _misuse("i", lambda b, _: b.swap_states(-1, 0)),
    "swap of another type": _misuse("j", lambda b, _: b.swap_states(0, "b"), TypeError),
    "step with a hole": _misuse("req_ids", _build({}), prepare=_make_hole),
    "step with tokens for a hole": _misuse("req_ids", _build({None: 1}), prepare=_make_hole),
    "request without an entry": _misuse("num_scheduled_tokens", lambda b, _: b.build({})),
    "request without an entry in a defaultdict": _misuse(
        "num_scheduled_tokens", _build_another_request
    ),
    "entry without a request": _misuse(
        "num_scheduled_tokens", _build({"unknown": 1}), applies=_always
    ),
    "negative tokens": _misuse("num_scheduled_tokens", _build({"request-0": -1})),
    "tokens of another type": _misuse(
        "num_scheduled_tokens", _build({"request-0": "1"}), TypeError
    ),
    "tokens as a numpy integer": _misuse(
        "num_scheduled_tokens", _build({"request-0": np.int64(1)}), TypeError
    ),
    "tokens as a bool": _misuse("num_scheduled_tokens", _build({"request-0": True}), TypeError),
    "schedule of another type": _misuse(
        "num_scheduled_tokens", lambda b, _: b.build([1]), TypeError, _always
    ),
    "tokens beyond the blocks (K14)": _misuse("num_blocks", _build({"request-0": 2**20})),
    "more tokens than the buffers": _misuse(
        "num_scheduled_tokens",
        _overfill,
        applies=_holds_more_than_the_buffer,
        prepare=_fill_columns,
    ),
    "fewer padded rows than requests": _misuse("num_padded_reqs", _build({}, 0)),
    "padded rows as a numpy integer": _misuse(
        "num_padded_reqs",
        lambda batch, scheduled: batch.build(scheduled, np.int64(batch.num_reqs)),
        TypeError,
    ),
    "padded tokens as a numpy integer": _misuse(
        "num_padded_tokens",
        lambda batch, scheduled: batch.build(scheduled, None, np.int64(sum(scheduled.values()))),
        TypeError,
    ),
    "more padded rows than the buffers": _misuse(
        "num_padded_reqs", _build({}, 2**20), applies=_always
    ),
    "fewer padded tokens than tokens": _misuse(
        "num_padded_tokens", _build({}, None, 0), applies=_has_tokens
    ),
    "more padded tokens than the buffers": _misuse(
        "num_padded_tokens", _build({}, None, 2**30), applies=_always
    ),
    "advance beyond the blocks": _misuse(
        "num_blocks", lambda b, scheduled: b.advance(scheduled | {"request-0": 2**20})
    ),
    "dummy of more rows than the buffers": _misuse(
        "num_reqs", lambda b, _: b.build_dummy(b.max_num_reqs + 1, 1), applies=_always
    ),
    "dummy of more tokens than the buffers": _misuse(
        "num_tokens", lambda b, _: b.build_dummy(1, b.max_num_tokens + 1), applies=_always
    ),
    "dummy tokens without a request": _misuse(
        "num_tokens", lambda b, _: b.build_dummy(0, 1), applies=_always
    ),
}
