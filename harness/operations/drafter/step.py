"""Operation of SPEC.md section 14: the next draft token of each request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.magnitudes import FAR_POSITIONS, UNEVEN_SIZES
from attnproof.harness.consumer.batch import (
    Rows,
    expected_tokens,
    int64_array,
    row_violations,
    slot_violations,
)
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in, mostly
from attnproof.harness.operations.drafter.diagnosis import diagnose_slots, of_another_block_size
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Positive, Tokens
from attnproof.reference import eagle_step_update_slot_mapping_and_metadata as reference

_WRITTEN = ("seq_lens", "out_clamped_positions", "out_slot_mapping")
_NO_LIMIT = 2**31 - 1


def _problem(case: Case) -> str:
    batch = batch_of(case)
    longest = max(batch.computed_lens, default=0) + case.params["ahead"]
    if set(batch.query_lens) - {1} or batch.padded_requests:
        return "batch.query_lens: a drafter has one token a request"
    if 0 in batch.computed_lens:
        return "batch.computed_lens: a draft token follows another token"
    return "ahead: a sequence beyond int32" if longest > _NO_LIMIT else ""


def _unreal(case: Case) -> str:
    if case.params["ahead"]:
        return "a drafter's sequences end at their positions"
    if case.params["columns"] is not None:
        return "an engine gives a draft token a block"
    return "positions of an engine are int64" if case.params["narrow"] else ""


def _of(batch: Batch) -> Batch:
    """Return a batch of one draft token for each request, at its last position."""
    kept = [r for r, c in enumerate(batch.computed_lens) if c + batch.query_lens[r] > 1]
    lengths = [batch.query_lens[r] + batch.computed_lens[r] for r in kept]
    return Batch(
        block_size=batch.block_size,
        query_lens=(1,) * len(kept),
        computed_lens=tuple(length - 1 for length in lengths),
        blocks=tuple(batch.blocks[r] for r in kept),
        spare_columns=batch.spare_columns,
        dtype=batch.dtype,
        strided=batch.strided,
    )


def _decodes(positions: list[int], block_size: int = 4, **fields: Any) -> Batch:
    return make_batch([1] * len(positions), positions, block_size, **fields)


def _examples() -> Iterator[Example]:
    several = _decodes([6, 3, 4, 9, 1], spare_columns=1, order="descending")
    yield "next block, same block (K35)", several, {}
    spec = _decodes([6, 10], spare_columns=1)
    yield "SPEC example", spec, {"max_model_len": 10, "input_batch_size": 1}
    for limit in (9, 10, 11):
        limited = {"max_model_len": limit, "input_batch_size": 3}
        yield f"position 9, max_model_len {limit}", several, limited
    yield "last block ends at max_model_len", _decodes([7, 8]), {"max_model_len": 8}
    yield "a model of one position", _decodes([1, 1]), {"max_model_len": 1}
    longest = {"max_model_len": 9, "ahead": 5}
    yield "length never above max_model_len", _decodes([8, 3]), longest
    yield "only graph padding", _decodes([]), {"input_batch_size": 5, "spare": 3}
    in_place = {"max_model_len": 9, "positions_1d_in_place": True, "input_batch_size": 2}
    yield "positions in place", several, in_place
    yield "padding over several tiles", _decodes([3, 5]), {"input_batch_size": 300, "spare": 3}
    for block_size in (1, 16, 256):
        highest = _decodes([block_size - 1 or 1, 2], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size}", highest, {}
    for size in UNEVEN_SIZES:
        for limit in FAR_POSITIONS:
            end = (limit // size + 1) * size
            last = _decodes([end - 3, end - 2, end - 1], size)
            yield f"last places of a block of {size} near {limit}", last, {}


def _steps(batch: Batch) -> Iterator[tuple[Batch, dict[str, Any]]]:
    padding = -batch.num_requests % 8
    yield batch, {"input_batch_size": padding, "positions_1d_in_place": True}


def _positions(values: Values) -> np.ndarray:
    dtype = np.int32 if values.params["narrow"] else np.int64
    positions: np.ndarray = (values.batch.num_computed_tokens - 1).astype(dtype)
    return positions


def _table(values: Values) -> np.ndarray:
    return values.batch.block_table_with(values.stale)[:, : values.params["columns"]]


def _ended(call: Call) -> np.ndarray:
    """Return (R,) true for a request whose next position reaches max_model_len."""
    ended: np.ndarray = expected_tokens(call.facts.batch).positions >= call["max_model_len"]
    return ended


def _slots(call: Call, outputs: Outputs) -> np.ndarray:
    """Return the slots of the requests and of graph padding."""
    rows = call["input_batch_size"] or call["seq_lens"].shape[0]
    return int64_array(outputs["out_slot_mapping"])[:rows]


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    ended, limit = _ended(call), call["max_model_len"]
    lengths, positions = (int64_array(outputs[name]) for name in _WRITTEN[:2])
    slots, rows = _slots(call, outputs), len(ended)
    if (lengths > limit).any() or (lengths < 1).any():
        yield Violation("seq_lens", "is no length up to max_model_len")
    if (positions[:rows] >= limit).any():
        yield Violation("out_clamped_positions", "reaches max_model_len")
    if positions[:rows][ended].any():
        yield Violation("out_clamped_positions", "is not 0 behind max_model_len")
    if (slots[:rows][ended] != -1).any():
        yield Violation("out_slot_mapping", "gives a slot to a position behind max_model_len")
    if (slots[rows:] != -1).any():
        yield Violation("out_slot_mapping", "gives a slot to graph padding")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check where each draft token is written, and which keys it sees."""
    expected, ended = expected_tokens(call.facts.batch), _ended(call)
    width = call["block_table_tensor"].shape[1]
    unwritten = ended | (expected.positions // expected.block_size >= width)
    slots = _slots(call, outputs)
    yield from slot_violations(expected, slots, "out_slot_mapping", unwritten=unwritten)
    if call.facts.params["ahead"] or unwritten.any():
        return
    lengths = int64_array(outputs["seq_lens"])
    kernel = Rows(np.arange(len(ended) + 1), lengths, expected.table)
    yield from row_violations(expected, kernel, np.arange(len(ended)))


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    if place.field == "out_slot_mapping":
        general = diagnose_slots(expected, got)
        return general or of_another_block_size(call, expected, got)
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    ended = _ended(call)
    if place.field == "seq_lens":
        wrong = (expected != got).cpu().numpy()
        return "length of a request past its end" if not wrong[~ended].any() else ""
    behind = torch.equal(got[: len(ended)], expected[: len(ended)])
    return "writes behind the requests" if behind else ""


eagle_step = derive_built_in(
    reference,
    section="14",
    summary="position, slot and length of each request's next draft token",
    values={
        "positions_1d": _positions,
        "block_table_tensor": _table,
        "seq_lens": lambda values: values.batch.seq_lens - 1 + values.params["ahead"],
    },
    parameters={
        "max_model_len": mostly(Positive, _NO_LIMIT, 1, 2, 8, 9),
        "ahead": mostly(Tokens, 0, 1, 5),
        "narrow": mostly(bool, False, True),
        "columns": mostly(Count | None, None, 0, 2),
    },
    adapt=_of,
    examples=_examples,
    steps=_steps,
    problem=_problem,
    unreal=_unreal,
    invariants=_invariants,
    consume=_consumed,
    diagnose=_diagnose,
    relations=Relations(
        joined=dict.fromkeys(_WRITTEN, Joined.ENTRIES),
        alone={"with_input_batch_size": False, "spare": 0},
        slots=frozenset({"out_slot_mapping"}),
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (eagle_step,)
