"""Operation of SPEC.md section 15: the positions of the new tokens of a batch.

Bug classes: positions counted from 0 behind a prefix, first indices that include the
request itself, a tile that is left out (K19).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params

NAME = "compute_position"
_FIELDS = ("positions", "extend_start_loc")
_PREFIXES, _LENGTHS, _SUM = "extend_prefix_lens", "extend_seq_lens", "extend_seq_lens_sum"


class _Params(Params):
    prefixes: bool


def _case(batch: Batch, *, prefixes: bool = True) -> Case:
    """Return a case; without `prefixes` an empty tensor stands for them: all begin at 0."""
    return Case(NAME, batch, {"prefixes": prefixes})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(draw(batches()), prefixes=draw(st.integers(0, 4)) < 4)


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 2, 0, 3], [4, 0, 3, 1], 4)
    yield "mixed batch", _case(mixed)
    yield "no prefixes given", _case(mixed, prefixes=False)
    yield "requests without tokens at both ends", _case(make_batch([0, 0, 9, 0], [1, 0, 2, 3], 4))
    yield "no requests", _case(make_batch([], [], 4))
    yield "padded rows", _case(make_batch([1, 3], [7, 0], 4, padded_requests=2))
    for tokens in (1023, 1024, 1025, 2500):
        yield f"{tokens} tokens of a request (K19)", _case(make_batch([tokens, 1], [3, 2], 16))
    for rows in (128, 129, 260):
        lengths = [1 + row % 3 for row in range(rows)]
        batch = make_batch(lengths, [row % 7 for row in range(rows)], 4)
        yield f"{rows} requests (K19)", _case(batch)
    yield "long prefixes", _case(make_batch([3, 1], [2**20 + 254, 2**21], 256))
    yield "strided int64", _case(make_batch([4, 3], [1, 5], 4, strided=True, dtype="int64"))


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    made, step = batch_arrays(batch), (2 if batch.strided else 1,)
    given = case.params["prefixes"]
    prefixes = made.num_computed_tokens if given else made.num_computed_tokens[:0]
    lengths = np.diff(made.query_start_loc)
    pieces = [Piece(_PREFIXES, prefixes, False, step), Piece(_LENGTHS, lengths, False, step)]
    arena = Arena(pieces, STALE_PATTERNS[pattern], device)
    args = {name: arena.tensors[name] for name in (_PREFIXES, _LENGTHS)}
    total = int(made.query_start_loc[-1])
    return Call(args | {_SUM: total}, arena=arena, facts=BatchFacts(batch=batch))


def _outputs(_call: Call, result: Any) -> Outputs:
    return dict(zip(_FIELDS, result, strict=True))


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare the results with the positions of the batch's tokens."""
    expected = expected_tokens(call.facts.batch)
    with_prefix = call[_PREFIXES].numel() > 0
    right = expected.positions if with_prefix else expected.indices
    if not np.array_equal(int64_array(outputs["positions"]), right):
        yield Violation("positions", "are not those of the batch's tokens")
    if not np.array_equal(int64_array(outputs["extend_start_loc"]), expected.starts[:-1]):
        yield Violation("extend_start_loc", "is not the index of each request's first token")


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


compute_position = Operation(
    name=NAME,
    section="15",
    summary="positions of the new tokens, and each request's first one",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: [_case(batch)],
        faults={
            "negative sum": wrong_value(_SUM, -1),
            "sum of another type": wrong_type(_SUM),
            "another sum": Fault(_SUM, lambda total: total + 1, cpu_only=True),
            "lengths of another type": wrong_type(_LENGTHS),
            "prefixes of another type": wrong_type(_PREFIXES),
            "float prefixes": Fault(_PREFIXES, torch.Tensor.float),
            "2-D lengths": Fault(_LENGTHS, lambda lengths: lengths[None]),
            "prefixes of another batch": Fault(
                _PREFIXES,
                lambda _, lengths: torch.cat([lengths, lengths]),
                given=(_LENGTHS,),
                applies=_has_tokens,
            ),
            "negative prefixes": Fault(
                _PREFIXES,
                lambda prefixes: -1 - prefixes,
                applies=lambda case: _has_tokens(case) and case.params["prefixes"],
                cpu_only=True,
            ),
            "negative lengths": Fault(
                _LENGTHS, lambda lengths: -1 - lengths, applies=_has_tokens, cpu_only=True
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        relations=Relations(
            joined={"positions": Joined.ENTRIES, "extend_start_loc": Joined.TOKEN_INDICES},
        ),
        invariants=_invariants,
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_position,)
