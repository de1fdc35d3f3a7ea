"""Operation of SPEC.md section 20: the request of each query token.

Bug classes: padding that keeps the requests of an earlier batch (K17), a request without
tokens that shifts the others, a map that is read from an earlier batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in
from attnproof.reference import compute_token_to_req_indices as reference


def _examples() -> Iterator[Example]:
    yield "padding of a graph", make_batch([2, 4, 1], [0, 3, 5], 4), {"num_tokens": 9}
    yield "padding behind a row without tokens", make_batch([2, 0], [0, 5], 4), {"num_tokens": 2}
    lengths = [1 + (5 * row) % 4 for row in range(1200)]
    many = make_batch(lengths, [row % 7 for row in range(1200)], 4)
    yield "many short requests over several tiles", many, {"num_tokens": 9}


def _padding(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Require 0 behind the last token."""
    if int64_array(outputs["result"])[call.facts.batch.num_tokens :].any():
        yield Violation("result", "is not 0 behind the last token")


def _steps(batch: Batch) -> Iterator[Step]:
    """Yield the step with its tokens padded to a size for which an engine captures a graph."""
    yield batch, {"num_tokens": -batch.num_tokens % 8}


compute_token_to_req_indices = derive_built_in(
    reference,
    section="20",
    summary="the request of each query token, 0 for padding",
    examples=_examples,
    steps=_steps,
    invariants=_padding,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_token_to_req_indices,)
