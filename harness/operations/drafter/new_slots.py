"""Operation of SPEC.md section 14: the slots of a batch whose queries got further tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Piece
from attnproof.harness.consumer.batch import (
    expected_tokens,
    int64_array,
    slot_violations,
)
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.drafter.diagnosis import diagnose_slots
from attnproof.harness.operations.drafter.extended_cases import (
    engine_rows,
    extended_batches,
    extended_facts,
    extended_problem,
    extended_shapes,
    extended_unreal,
    lay_out_smaller,
    rejected_tokens,
)
from attnproof.harness.operations.drafter.extended_faults import SLOT_FAULTS
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few, Lengths, Params, Positive

NAME = "compute_new_slot_mapping"
_NO_LIMIT = 2**31 - 1


class _Params(Params):
    more: Few
    rejected: Lengths
    """Rejected tokens at the end of each row."""
    max_model_len: Positive = _NO_LIMIT
    columns: Count | None = None
    """Columns of the block table, None for all."""
    narrow: bool = False
    """True if positions are int32."""


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch, more = draw(extended_batches(extras=False))
    ends = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    limits = [_NO_LIMIT, *(max(1, end + off) for end in ends for off in (-1, 0))]
    return _case(
        batch,
        more,
        [draw(st.integers(0, min(query_len, 3))) for query_len in batch.query_lens],
        max_model_len=draw(st.sampled_from(limits)),
        columns=draw(st.sampled_from((None, None, None, None, 0, 1, 2))),
        narrow=draw(st.sampled_from((False, False, True))),
    )


def _case(batch: Batch, more: int, rejected: list[int] | None = None, **others: Any) -> Case:
    rows = rejected or [0] * batch.num_requests
    return Case(NAME, batch, {"more": more, "rejected": rows} | others)


def _boundaries() -> Iterator[tuple[str, Case]]:
    for name, batch, more in extended_shapes():
        rejected = [row % (1 + min(q, 2)) for row, q in enumerate(batch.query_lens)]
        yield name, _case(batch, more, rejected)
    mixed = make_batch([3, 7, 2, 5], [7, 0, 3, 9], 4, order="descending")
    yield "all rejected", _case(mixed, 1, [3, 7, 2, 5])
    for limit in (1, 9, 10, 13, 14):
        yield f"max_model_len {limit}", _case(mixed, 1, max_model_len=limit)
    yield "position beyond its row's columns (K14)", _case(mixed, 1, columns=2)
    yield "table without columns", _case(mixed, 1, columns=0)
    for block_size in (1, 16, 256):
        highest = make_batch([3, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size} (K15)", _case(highest, 1)
    for tokens in (255, 256, 257, 3000):
        yield f"{tokens} tokens at a kernel tile", _case(make_batch([tokens], [5], 16), 1)
    yield "int32 positions", _case(mixed, 1, narrow=True)


def _steps(batch: Batch) -> Iterator[Case]:
    whole = engine_rows(batch)
    rejected = [row % min(q, 4) if q else 0 for row, q in enumerate(whole.query_lens)]
    yield _case(whole, min([1, *whole.query_lens]), rejected)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, rejected, params = batch_of(case), rejected_tokens(case), case.params
    step, stale = (2 if batch.strided else 1,), STALE_PATTERNS[pattern]
    positions = np.full(len(rejected), stale, np.int32 if params.get("narrow") else np.int64)
    positions[: batch.num_tokens] = expected_tokens(batch).positions
    positions[rejected] = 0
    # The arena's words are integers: the mask is a view of bytes.
    pieces = [
        Piece("new_positions", positions, False, step),
        Piece("is_rejected_token_mask", rejected.astype(np.uint8), False, step),
    ]
    metadata, arena = lay_out_smaller(case, pattern, device, pieces)
    return Call(
        {
            "cad": metadata,
            "new_positions": arena.tensors["new_positions"],
            "is_rejected_token_mask": arena.tensors["is_rejected_token_mask"].view(torch.bool),
            "block_size": batch.block_size,
            "num_new_tokens": params["more"],
            "max_model_len": params.get("max_model_len", _NO_LIMIT),
        },
        arena=arena,
        facts=extended_facts(case, metadata),
    )


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    slots = int64_array(outputs["result"])
    if (slots[call.facts.rejected] != -1).any():
        yield Violation("result", "gives a slot to a rejected token")
    if (slots[call.facts.batch.num_tokens :] != -1).any():
        yield Violation("result", "gives a slot to graph padding")
    live = slots >= 0
    positions = int64_array(call["new_positions"])
    block_size = call.facts.batch.block_size
    if (slots[live] % block_size != positions[live] % block_size).any():
        yield Violation("result", "puts a token at another offset of its block")
    if (positions[live] >= call["max_model_len"]).any():
        yield Violation("result", "gives a slot to a position beyond max_model_len")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that a rejected token is written nowhere, and any other one where it is read."""
    expected, params = expected_tokens(call.facts.batch), call.facts.params
    columns = params.get("columns")
    width = expected.table.shape[1] if columns is None else columns
    unwritten = call.facts.rejected[: len(expected.positions)].copy()
    unwritten |= expected.positions >= call["max_model_len"]
    unwritten |= expected.positions // expected.block_size >= width
    yield from slot_violations(expected, outputs["result"], "result", unwritten=unwritten)


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = (expected != got).cpu().numpy()
    if wrong.any() and call.facts.rejected[wrong].all():
        return "a slot for a rejected token"
    return diagnose_slots(expected, got)


compute_new_slot_mapping = Operation(
    name=NAME,
    section="14",
    summary="slots of a batch whose queries all got further tokens",
    inputs=Inputs(
        params=_Params,
        problem=extended_problem,
        unreal=extended_unreal,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=SLOT_FAULTS,
    ),
    call=FunctionCall(prepare=_prepare, outputs=lambda _call, result: {"result": result}),
    contract=Contract(
        relations=Relations(
            joined={"result": Joined.ENTRIES},
            per_request=frozenset({"rejected"}),
            slots=frozenset({"result"}),
        ),
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
    ),
    bench=Bench(cases=lambda batch: _steps(batch) if batch.num_requests == 64 else ()),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_new_slot_mapping,)
