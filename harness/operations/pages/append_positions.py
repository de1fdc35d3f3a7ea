"""Operation of SPEC.md section 15: request and position of each appended token.

Bug classes: positions counted from the wrong end, tail entries that name request 0 (K17),
a request without tokens that shifts the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.reference import get_batch_indices_positions as reference


def _examples() -> Iterator[Example]:
    yield "example", make_batch([1, 2, 3], [4, 0, 1], 4), {"nnz": 1}
    lengths = [(5 * row) % 4 for row in range(1200)]
    many = make_batch(lengths, [row % 7 for row in range(1200)], 4)
    yield "many short requests over several tiles", many, {"nnz": 9}
    yield "no requests, padded", make_batch([], [], 4), {"nnz": 4}
    yield "int64 offsets", make_batch([4, 3], [1, 5], 4, dtype="int64 offsets"), {}


def _tail(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the entries behind the last token, which name no request."""
    for name, value in (("batch_indices", -1), ("positions", 0)):
        tail = int64_array(outputs[name])[call.facts.batch.num_tokens :]
        if not np.array_equal(tail, np.full(call["nnz"] - call.facts.batch.num_tokens, value)):
            yield Violation(name, "do not name each token's request and position")


get_batch_indices_positions = derive_built_in(
    reference,
    section="15",
    summary="request and position of each token appended to the cache",
    examples=_examples,
    faults={
        "fewer entries than tokens": Fault(
            "nnz", lambda _: 0, applies=lambda case: case.num_tokens > 0, cpu_only=True
        ),
        "sequence shorter than what is appended": Fault(
            "seq_lens",
            lambda _, offsets: (offsets.diff() - 1).clamp(min=0),
            reads=("append_indptr",),
            applies=lambda case: case.num_tokens > 0,
            cpu_only=True,
        ),
    },
    invariants=_tail,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (get_batch_indices_positions,)
