"""Diagnoses of a persistent batch: another row's state, another request's block."""

from __future__ import annotations

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
        return _about_rows(field, expected, got)
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return ""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return ""
    where = expected != got
    if field in ("slot_mapping", "slot_buffer", "slots"):
        return _about_slots(_engine(call, place), expected[where].tolist(), got[where].tolist())
    if field == "block_table_tensor":
        assert place.step is not None
        dummy = call["script"].lines[place.step].kind == "dummy"
        if dummy or expected[where.any(1)].any():
            return _about_blocks(_engine(call, place), got[where].tolist())
        return "padded row keeps an earlier request's state"
    if field in ("seq_lens", "seq_lens_cpu") and not expected[where].any():
        return "padded row keeps an earlier request's state"
    return ""


def _engine(call: Call, place: Place) -> Engine:
    """Return the scheduler's state after the step of the place."""
    assert place.step is not None
    return engine_after(call.facts.case, place.step)


def _about_rows(name: str, expected: list[Any], got: list[Any]) -> str:
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
        return "a request was lost"
    if name == "num_computed_tokens":
        return "a row keeps an earlier request's state"
    mine = [set(right or ()) for right in expected]
    foreign = [set(got[row] or ()) - mine[row] for row in wrong]
    if any(blocks & set().union(*mine) for blocks in foreign):
        return "another request's block"
    return "stale block of an earlier request" if any(foreign) else "a row loses blocks"


def _is_of_another(row: int, expected: list[Any], got: list[Any]) -> bool:
    """True if the row has the value of another row in which this value is right."""
    same = (other for other, value in enumerate(got) if other != row and value == got[row])
    return any(expected[other] == got[other] for other in same)


def _about_slots(engine: Engine, expected: list[int], got: list[int]) -> str:
    if set(expected) == {-1}:
        return "a valid slot where none is due"
    if set(got) == {-1}:
        return "token without its slot"
    size = engine.block_size
    if any(right % size != value % size for right, value in zip(expected, got, strict=True)):
        return "wrong slot"
    return _about_blocks(engine, [slot // size for slot in got])


def _about_blocks(engine: Engine, got: list[int]) -> str:
    """Name the present owner of wrong blocks."""
    owners = {engine.owner(block) for block in got}
    return "stale block of an earlier request" if None in owners else "another request's block"
