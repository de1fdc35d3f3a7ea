"""Operation of SPEC.md section 15: the slot of the last token of each prefix.

Bug classes: an empty prefix that reads the end of another row, the position behind the
last one, row times width in 32 bits (K15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.model.call import Call, Outputs, Quantity
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.pages.pool import needs_wide_pool, pool_problem, token_pool
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of, returned
from attnproof.harness.operations.shared.params import Params

NAME = "get_last_loc"
_ROWS, _LENGTHS = "req_pool_indices_tensor", "prefix_lens_tensor"


class _Params(Params):
    wide_lengths: bool


def _case(batch: Batch, *, wide_lengths: bool = True) -> Case:
    """Return a case; `wide_lengths` selects int64 lengths, which SGLang has."""
    return Case(NAME, batch, {"wide_lengths": wide_lengths})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(draw(batches()), wide_lengths=draw(st.booleans()))


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 2, 0, 3], [4, 0, 3, 1], 4, order="descending")
    yield "mixed batch", _case(mixed)
    yield "int32 lengths", _case(mixed, wide_lengths=False)
    yield "no prefix at all", _case(make_batch([3, 1], [0, 0], 4))
    yield "no requests", _case(make_batch([], [], 4))
    yield "padded rows", _case(make_batch([1, 3], [7, 0], 4, padded_requests=2))
    yield "prefix that is the sequence", _case(make_batch([0, 0], [8, 1], 4))
    for rows in (255, 256, 257):
        batch = make_batch([1] * rows, [row % 9 for row in range(rows)], 4, order="shuffled")
        yield f"{rows} requests (K19)", _case(batch)
    highest = make_batch([3, 2], [15, 1], 16, first=HIGHEST_BLOCK - 4)
    yield "highest page ids (K15)", _case(highest)
    yield "highest page ids, int32 lengths (K15)", _case(highest, wide_lengths=False)
    strided = make_batch([4, 3], [1, 5], 4, strided=True, dtype="int64")
    yield "strided int64", _case(strided)


def _steps(batch: Batch) -> Iterator[Case]:
    if not pool_problem(Case(NAME, batch)):
        yield _case(batch)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    made, pool = batch_arrays(batch, pattern), token_pool(batch, pattern)
    step = 2 if batch.strided else 1
    dtype = np.int64 if case.params["wide_lengths"] else np.int32
    pieces = [
        table_piece("req_to_token", pool.table, step),
        Piece(_ROWS, pool.rows.astype(dtype), False, (step,)),
        Piece(_LENGTHS, made.num_computed_tokens.astype(dtype), False, (step,)),
    ]
    arena = Arena(pieces, STALE_PATTERNS[pattern], device)
    args = {piece.name: arena.tensors[piece.name] for piece in pieces}
    facts = BatchFacts(batch=batch, block_size=batch.block_size, result=Quantity.SLOTS)
    return Call(args, arena=arena, facts=facts)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare the slots with those that the batch's block table gives the last positions."""
    expected = expected_tokens(call.facts.batch)
    last, size = expected.computed - 1, expected.block_size
    rows = np.arange(len(last))
    right = np.full(len(last), -1, dtype=np.int64)
    some = last >= 0
    blocks = expected.table[rows[some], last[some] // size]
    right[some] = blocks * size + last[some] % size
    if not np.array_equal(int64_array(outputs["result"]), right):
        yield Violation("result", "is not the slot of the last token of each prefix")


def _has_prefix(case: Case) -> bool:
    return any(batch_of(case).computed_lens)


def _values(parameter: str, change: Any) -> Fault:
    """Return a fault of a tensor's values, which a check can detect on the CPU only."""
    return Fault(parameter, change, applies=_has_prefix, cpu_only=True)


get_last_loc = Operation(
    name=NAME,
    section="15",
    summary="the slot of the last token of each prefix",
    inputs=Inputs(
        params=_Params,
        whole_contexts=True,
        problem=pool_problem,
        unreal=needs_wide_pool,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "table of another type": wrong_type("req_to_token"),
            "flat table": Fault("req_to_token", torch.Tensor.flatten),
            "float lengths": Fault(_LENGTHS, torch.Tensor.float),
            "2-D rows": Fault(_ROWS, lambda rows: rows[None]),
            "one length missing": Fault(
                _LENGTHS, lambda lengths: lengths[:-1], applies=_has_prefix
            ),
            "rows behind the pool": _values(_ROWS, lambda rows: rows + 2**20),
            "negative rows": _values(_ROWS, lambda rows: -1 - rows),
            "prefixes longer than a row": _values(_LENGTHS, lambda lengths: lengths + 2**24),
            "negative lengths": _values(_LENGTHS, lambda lengths: -1 - lengths),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=returned),
    contract=Contract(
        relations=Relations(joined={"result": Joined.ENTRIES}), invariants=_invariants
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (get_last_loc,)
