"""Diagnoses of a persistent batch: another row's state, another request's block."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from attnproof.harness.model.call import Call
from attnproof.harness.model.place import Place
from attnproof.harness.operations.persistent_batch.steps import Engine, engine_after


def diagnose_batch(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Return the most specific diagnosis of a wrong field, "" without one."""
    # Fields of micro-batches and virtual batches have a prefix: "virtual: seq_lens".
    field = place.field.rpartition(": ")[2]
    if field == "requests":
        return "requests miscounted"
    if field == "moved buffers":
        return "a step buffer changed its address"
    if isinstance(expected, list) and isinstance(got, list):
        return _about_rows(call, place, field, expected, got)
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return ""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return ""
    where = expected != got
    if field in ("slot_mapping", "slot_buffer", "slots"):
        return _about_slots(_engines(call, place), expected[where].tolist(), got[where].tolist())
    if field == "block_table_tensor":
        assert place.step is not None
        dummy = call["script"].lines[place.step].kind == "dummy"
        if dummy or expected[where.any(1)].any():
            pairs = zip(expected[where].tolist(), got[where].tolist(), strict=True)
            return _about_blocks(_engines(call, place), pairs)
        return "padded row keeps an earlier request's state"
    if field in ("seq_lens", "seq_lens_cpu") and not expected[where].any():
        return "padded row keeps an earlier request's state"
    return ""


def _engines(call: Call, place: Place) -> list[Engine]:
    """Return the scheduler's states after each step to that of the place."""
    assert place.step is not None
    return [engine_after(call.facts.case, step) for step in range(place.step + 1)]


def _about_rows(call: Call, place: Place, name: str, expected: list[Any], got: list[Any]) -> str:
    """Name the origin of wrong row state: another row or an earlier request."""
    if name not in ("req_ids", "blocks", "num_computed_tokens") or len(expected) != len(got):
        return ""
    wrong = [
        row for row, (right, value) in enumerate(zip(expected, got, strict=True)) if right != value
    ]
    if all(_is_of_another(row, expected, got) for row in wrong):
        return "both rows hold the same request"
    if sorted(map(str, expected)) == sorted(map(str, got)):
        return f"{'a request' if name == 'req_ids' else 'state of a request'} in another row"
    if name == "req_ids":
        return "a request was lost" if {*expected} - {*got} - {None} else ""
    engines = _engines(call, place)
    if name == "num_computed_tokens":
        kept = all(any(_computed(each, row) == got[row] for each in engines[:-1]) for row in wrong)
        return "a row keeps an earlier request's state" if kept else ""
    mine = [set(right or ()) for right in expected]
    foreign = [set(got[row] or ()) - mine[row] for row in wrong]
    if not any(foreign):
        return "a row loses blocks"
    # -1 is nobody's: the row's own blocks are none of them.
    pairs = ((-1, block) for blocks in foreign for block in blocks)
    return _about_blocks(engines, pairs) if all(foreign) else ""


def _computed(engine: Engine, row: int) -> int | None:
    """Return the computed tokens of the request in the row, None without one."""
    req_id = engine.rows[row] if row < len(engine.rows) else None
    return None if req_id is None else engine.computed[req_id]


def _is_of_another(row: int, expected: list[Any], got: list[Any]) -> bool:
    """True if the row has the value of another row in which this value is right."""
    same = (other for other, value in enumerate(got) if other != row and value == got[row])
    return any(expected[other] == got[other] for other in same)


def _about_slots(engines: list[Engine], expected: list[int], got: list[int]) -> str:
    if set(expected) == {-1}:
        return "a valid slot where none is due"
    if set(got) == {-1}:
        return "token without its slot"
    size, pairs = engines[-1].block_size, list(zip(expected, got, strict=True))
    if any(right == -1 or right % size != value % size for right, value in pairs):
        return "wrong slot"
    return _about_blocks(engines, ((right // size, value // size) for right, value in pairs))


def _about_blocks(engines: list[Engine], pairs: Iterable[tuple[int, int]]) -> str:
    """Name the owner of the wrong blocks if it is of one kind."""
    kinds = {_about_block(engines, right, wrong) for right, wrong in pairs}
    return kinds.pop() if len(kinds) == 1 else "wrong block"


def _about_block(engines: list[Engine], right: int, wrong: int) -> str:
    """Name the owner of a block, now or in the past."""
    *earlier, engine = engines
    owner = engine.owner(wrong)
    if owner is not None:
        return "wrong block" if owner == engine.owner(right) else "another request's block"
    was_owned = any(each.owner(wrong) is not None for each in earlier)
    return "stale block of an earlier request" if was_owned else "a block that no request owns"
