"""Operation of SPEC.md section 3: the query offsets of some requests, rebased to 0."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Facts, Outputs, Quantity
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import batch_of, returned
from attnproof.harness.operations.shared.params import Params, Positive

NAME = "slice_query_start_locs"


class _Params(Params):
    start: Count
    stop: Positive


def _problem(case: Case) -> str:
    return "" if case.num_requests else "batch.query_lens: no request to slice"


def _case(batch: Batch, start: int, stop: int) -> Case:
    return Case(NAME, batch, {"start": start, "stop": stop})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(min_requests=1))
    start = draw(st.integers(0, batch.num_requests - 1))
    return _case(batch, start, draw(st.integers(start + 1, batch.num_requests)))


def _boundaries() -> Iterator[tuple[str, Case]]:
    batch = make_batch([3, 1, 0, 9], [0, 5, 2, 7], 4)
    yield "all requests", _case(batch, 0, 4)
    yield "first request", _case(batch, 0, 1)
    yield "last request", _case(batch, 3, 4)
    yield "zero-length request", _case(batch, 2, 3)
    yield (
        "strided int64",
        _case(msgspec.structs.replace(batch, dtype="int64", strided=True), 1, 4),
    )


def _steps(batch: Batch) -> Iterator[Case]:
    if batch.num_requests:
        yield _case(batch, batch.num_requests // 3, batch.num_requests)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    offsets = batch_arrays(batch).query_start_loc
    step = (2 if batch.strided else 1,)
    arena = Arena([Piece("query_start_loc", offsets, False, step)], STALE_PATTERNS[pattern], device)
    stop = min(case.params["stop"], batch.num_requests)
    request_slice = slice(min(case.params["start"], stop - 1), stop)
    arguments = {
        "query_start_loc": arena.tensors["query_start_loc"],
        "request_slice": request_slice,
    }
    return Call(arguments, arena=arena, facts=Facts(result=Quantity.OFFSETS))


def _invariants(_call: Call, outputs: Outputs) -> Iterator[Violation]:
    result = outputs["result"]
    if isinstance(result, torch.Tensor) and result.numel() and int(result[0]) != 0:
        yield Violation("result", "does not start at 0")


slice_query_start_locs = Operation(
    name=NAME,
    section="3",
    summary="offsets of some of the requests, rebased to 0",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "empty slice": wrong_value("request_slice", slice(0, 0)),
            "slice beyond the requests": wrong_value("request_slice", slice(0, 10_000)),
            "slice one beyond the requests": Fault(
                "request_slice",
                lambda given, offsets: slice(given.start, len(offsets)),
                given=("query_start_loc",),
            ),
            "slice with a step": wrong_value(
                "request_slice", slice(0, 2, 2), lambda case: case.num_requests > 1
            ),
            "slice of another type": wrong_type("request_slice"),
            "offsets of another type": wrong_type("query_start_loc"),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=returned),
    contract=Contract(invariants=_invariants),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (slice_query_start_locs,)
