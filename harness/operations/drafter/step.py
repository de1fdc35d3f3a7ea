"""Operation of SPEC.md section 14: the next draft token of each request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, table_piece
from attnproof.harness.cases.magnitudes import FAR_POSITIONS, UNEVEN_SIZES
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import (
    Rows,
    expected_tokens,
    int64_array,
    row_violations,
    slot_violations,
)
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.drafter.diagnosis import diagnose_slots
from attnproof.harness.operations.drafter.step_faults import FAULTS
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Params, Positive, Tokens

NAME = "eagle_step_update_slot_mapping_and_metadata"
_WRITTEN = ("seq_lens", "out_clamped_positions", "out_slot_mapping")
_NO_LIMIT = 2**31 - 1


class _Params(Params):
    max_model_len: Positive
    padding: Tokens | None
    """Rows of graph padding, None for a call without a number of rows."""
    spare: Tokens
    """Entries of the outputs behind those that are written."""
    in_place: bool
    """True if positions are written where they are read."""
    ahead: Tokens
    """Difference of each sequence's length and its position + 1."""
    narrow: bool
    """True if positions are int32."""
    columns: Count | None = None
    """Columns of the block table, None for all."""


@dataclass(frozen=True, kw_only=True)
class _StepFacts(Facts):
    batch: Batch
    """The batch after the step: one query each, whose slot and position are written."""
    ended: np.ndarray
    """(R,) true for a request whose next position reaches max_model_len."""
    params: dict[str, Any]


def _problem(case: Case) -> str:
    batch = batch_of(case)
    if set(batch.query_lens) - {1} or batch.padded_requests:
        return "batch.query_lens: a drafter has one token a request"
    if 0 in batch.computed_lens:
        return "batch.computed_lens: a draft token follows another token"
    longest = max(batch.computed_lens, default=0) + case.params["ahead"]
    return "ahead: a sequence beyond int32" if longest > _NO_LIMIT else ""


def _unreal(case: Case) -> str:
    if case.params["ahead"]:
        return "a drafter's sequences end at their positions"
    if case.params.get("columns") is not None:
        return "an engine gives a draft token a block"
    return "positions of an engine are int64" if case.params["narrow"] else ""


def _case(batch: Batch, max_model_len: int = _NO_LIMIT, **changes: Any) -> Case:
    params = {"padding": None, "spare": 0, "in_place": False, "ahead": 0, "narrow": False}
    return Case(NAME, batch, {"max_model_len": max_model_len} | params | changes)


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


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = _of(draw(batches()))
    limits = [_NO_LIMIT, *(c + off for c in batch.computed_lens for off in (0, 1))]
    return _case(
        batch,
        draw(st.sampled_from(limits)),
        padding=draw(st.sampled_from((None, 0, 1, 3))),
        spare=draw(st.integers(0, 2)),
        in_place=draw(st.booleans()),
        ahead=draw(st.sampled_from((0, 0, 0, 1, 5))),
        narrow=draw(st.sampled_from((False, False, True))),
        columns=draw(st.sampled_from((None, None, None, None, 0, 1, 2))),
    )


def _decodes(positions: list[int], block_size: int = 4, **fields: Any) -> Batch:
    return make_batch([1] * len(positions), positions, block_size, **fields)


def _boundaries() -> Iterator[tuple[str, Case]]:
    several = _decodes([6, 3, 4, 9, 1], spare_columns=1, order="descending")
    yield "next block, same block (K35)", _case(several)
    yield "SPEC example", _case(_decodes([6, 10], spare_columns=1), 10, padding=1)
    for limit in (9, 10, 11):
        yield f"position 9, max_model_len {limit}", _case(several, limit, padding=3)
    yield "last block ends at max_model_len", _case(_decodes([7, 8]), 8)
    yield "a model of one position", _case(_decodes([1, 1]), 1)
    yield "length never above max_model_len", _case(_decodes([8, 3]), 9, ahead=5)
    yield "graph padding, stale entries behind", _case(several, padding=4, spare=3)
    yield "only graph padding", _case(_decodes([]), padding=5, spare=1)
    yield "no requests", _case(_decodes([]))
    yield "positions in place", _case(several, 9, in_place=True, padding=2)
    yield "position beyond the table's columns", _case(several, columns=1)
    yield "table without columns", _case(several, columns=0)
    for block_size in (1, 16, 256):
        highest = _decodes([block_size - 1 or 1, 2], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size}", _case(highest)
    for rows in (127, 128, 129):
        yield (
            f"{rows} rows at a kernel tile",
            _case(_decodes([3 + row % 5 for row in range(rows)], 16), padding=rows % 2),
        )
    yield "padding over several tiles", _case(_decodes([3, 5]), padding=300, spare=9)
    strided = _decodes([6, 3], strided=True, dtype="int64")
    yield "strided int64", _case(strided, padding=2, spare=2)
    yield "int32 positions", _case(several, narrow=True)
    for size in UNEVEN_SIZES:
        for limit in FAR_POSITIONS:
            end = (limit // size + 1) * size
            yield (
                f"last places of a block of {size} near {limit}",
                _case(_decodes([end - 3, end - 2, end - 1], size)),
            )
    yield "position beyond 2**20", _case(_decodes([2**20 + 255], 256))


def _steps(batch: Batch) -> Iterator[Case]:
    decodes = _of(batch)
    yield _case(decodes, padding=-decodes.num_requests % 8, in_place=True)


def _timed(batch: Batch) -> Iterator[Case]:
    if batch.num_requests == 64:
        yield from _steps(msgspec.structs.replace(batch, dtype="int32", strided=False))


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    made, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    step, rows, spare = 2 if batch.strided else 1, made.num_reqs, params["spare"]
    positions = (made.num_computed_tokens - 1).astype(np.int32 if params["narrow"] else np.int64)
    lengths = (made.seq_lens - 1 + params["ahead"]).astype(made.seq_lens.dtype)
    padded = rows + (params["padding"] or 0)
    table = made.block_table_with(stale)[:, : params.get("columns")]
    pieces = [
        Piece("positions_1d", positions, False, (step,)),
        table_piece("block_table_tensor", table, step),
        Piece("seq_lens", lengths, False, (step,)),
        Piece("out_clamped_positions", np.full(rows + spare, stale, np.int64), False, (step,)),
        Piece("out_slot_mapping", np.full(padded + spare, stale, np.int64), False, (step,)),
    ]
    arena = Arena(pieces, stale, device)
    tensors = arena.tensors
    out = tensors["positions_1d" if params["in_place"] else "out_clamped_positions"]
    return Call(
        {
            "positions_1d": tensors["positions_1d"],
            "block_table_tensor": tensors["block_table_tensor"],
            "seq_lens": tensors["seq_lens"],
            "block_size": batch.block_size,
            "max_model_len": params["max_model_len"],
            "out_clamped_positions": out,
            "out_slot_mapping": tensors["out_slot_mapping"],
            "input_batch_size": None if params["padding"] is None else padded,
        },
        arena=arena,
        written=frozenset((*_WRITTEN, "positions_1d") if params["in_place"] else _WRITTEN),
        facts=_StepFacts(
            batch=batch,
            ended=made.num_computed_tokens >= params["max_model_len"],
            params=params,
        ),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return {"result": result} | {name: call[name] for name in _WRITTEN}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    rows, limit = len(call.facts.ended), call.facts.params["max_model_len"]
    lengths, positions = (int64_array(outputs[name]) for name in _WRITTEN[:2])
    slots = int64_array(outputs["out_slot_mapping"])
    if (lengths > limit).any() or (lengths < 1).any():
        yield Violation("seq_lens", "is no length up to max_model_len")
    if (positions[:rows] >= limit).any():
        yield Violation("out_clamped_positions", "reaches max_model_len")
    if positions[:rows][call.facts.ended].any():
        yield Violation("out_clamped_positions", "is not 0 behind max_model_len")
    if (slots[:rows][call.facts.ended] != -1).any():
        yield Violation("out_slot_mapping", "gives a slot to a position behind max_model_len")
    padded = rows + (call.facts.params["padding"] or 0)
    if (slots[rows:padded] != -1).any():
        yield Violation("out_slot_mapping", "gives a slot to graph padding")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check where each draft token is written, and which keys it sees."""
    expected, params = expected_tokens(call.facts.batch), call.facts.params
    rows, columns = len(call.facts.ended), params.get("columns")
    width = expected.table.shape[1] if columns is None else columns
    cut = expected.positions // expected.block_size >= width
    slots = int64_array(outputs["out_slot_mapping"])[: rows + (params["padding"] or 0)]
    unwritten = call.facts.ended | cut
    yield from slot_violations(expected, slots, "out_slot_mapping", unwritten=unwritten)
    if params["ahead"] or unwritten.any():
        return
    lengths = int64_array(outputs["seq_lens"])
    kernel = Rows(np.arange(rows + 1), lengths, expected.table)
    yield from row_violations(expected, kernel, np.arange(rows))


def _of_another_block_size(call: Call, expected: Any, got: Any) -> str:
    """Return a diagnosis if the wrong slots are those of smaller or larger blocks."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    tokens, slots = expected_tokens(call.facts.batch), int64_array(got)
    wrong = np.flatnonzero(int64_array(expected) != slots)
    if not len(wrong) or wrong[-1] >= len(tokens.positions):
        return ""
    positions, width = tokens.positions[wrong], tokens.table.shape[1]
    for size in (tokens.block_size * 2, tokens.block_size // 2):
        columns = positions // max(size, 1)
        if not size or columns.max() >= width:
            continue
        blocks = tokens.table[tokens.requests[wrong], columns]
        if np.array_equal(slots[wrong], blocks * size + positions % size):
            return "slots of another block size"
    return ""


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    rows = len(call.facts.ended)
    if place.field == "out_slot_mapping":
        general = diagnose_slots(expected, got)
        return general or _of_another_block_size(call, expected, got)
    if place.field == "seq_lens" and isinstance(got, torch.Tensor) and got.shape == expected.shape:
        wrong = (expected != got).cpu().numpy()
        return "length of a request past its end" if not wrong[~call.facts.ended].any() else ""
    if place.field == "out_clamped_positions" and isinstance(got, torch.Tensor):
        behind = got.shape == expected.shape and torch.equal(got[:rows], expected[:rows])
        return "writes behind the requests" if behind else ""
    return ""


eagle_step = Operation(
    name=NAME,
    section="14",
    summary="position, slot and length of each request's next draft token",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=FAULTS,
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        relations=Relations(
            joined={
                "seq_lens": Joined.ENTRIES,
                "out_clamped_positions": Joined.ENTRIES,
                "out_slot_mapping": Joined.ENTRIES,
            },
            alone={"padding": None, "spare": 0},
            slots=frozenset({"out_slot_mapping"}),
        ),
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
        may_alias=frozenset(_WRITTEN),
    ),
    bench=Bench(cases=_timed),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (eagle_step,)
