"""Operation of SPEC.md section 3: the query offsets of some requests, rebased to 0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in, one_of
from attnproof.harness.operations.shared.faults import wrong_value
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Positive
from attnproof.reference import slice_query_start_locs as reference


def _examples() -> Iterator[Example]:
    batch = make_batch([3, 1, 0, 9], [0, 5, 2, 7], 4)
    yield "last request", batch, {"start": 3, "stop": 4}
    yield "zero-length request", batch, {"start": 2, "stop": 3}


def _steps(batch: Batch) -> Iterator[tuple[Batch, dict[str, Any]]]:
    yield batch, {"start": batch.num_requests // 3, "stop": max(1, batch.num_requests)}


def _slice(values: Values) -> slice:
    stop = min(values.params["stop"], values.batch.num_reqs)
    return slice(min(values.params["start"], stop - 1), stop)


def _invariants(_call: Call, outputs: Outputs) -> Iterator[Violation]:
    result = outputs["result"]
    if isinstance(result, torch.Tensor) and result.numel() and int(result[0]) != 0:
        yield Violation("result", "does not start at 0")


slice_query_start_locs = derive_built_in(
    reference,
    section="3",
    summary="offsets of some of the requests, rebased to 0",
    values={"request_slice": _slice},
    parameters={
        "start": one_of(Count, 0, 1, 2, 3, 5),
        "stop": one_of(Positive, 2**31 - 1, 1, 2, 3, 4, 6),
    },
    batches=lambda: batches(min_requests=1),
    examples=_examples,
    steps=_steps,
    problem=lambda case: "" if batch_of(case).num_requests else "batch: no request to slice",
    faults={
        "empty slice": wrong_value("request_slice", slice(0, 0)),
        "slice one beyond the requests": Fault(
            "request_slice",
            lambda old, offsets: slice(old.start, len(offsets)),
            reads=("query_start_loc",),
        ),
        "slice with a step": wrong_value(
            "request_slice", slice(0, 2, 2), lambda case: case.num_requests > 1
        ),
    },
    invariants=_invariants,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (slice_query_start_locs,)
