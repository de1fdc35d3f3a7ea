"""Operation of SPEC.md section 15: the slot of the last token of each prefix.

Bug classes: an empty prefix that reads the end of another row, the position behind the
last one, row times width in 32 bits (K15).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.reference import get_last_loc as reference


def _examples() -> Iterator[Example]:
    yield "no prefix at all", make_batch([3, 1], [0, 0], 4), {}
    yield "prefix that is the sequence", make_batch([0, 0], [8, 1], 4), {}
    for dtype in ("int32", "int64"):
        highest = make_batch([3, 2], [15, 1], 16, first=HIGHEST_BLOCK - 4, dtype=dtype)
        yield f"highest page ids, {dtype} lengths (K15)", highest, {}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare the slots with those that the batch's block table gives the last positions."""
    expected = expected_tokens(call.facts.batch)
    last, size = expected.computed - 1, expected.block_size
    some = last >= 0
    right = np.full(len(last), -1, dtype=np.int64)
    blocks = expected.table[np.flatnonzero(some), last[some] // size]
    right[some] = blocks * size + last[some] % size
    if not np.array_equal(int64_array(outputs["result"]), right):
        yield Violation("result", "is not the slot of the last token of each prefix")


get_last_loc = derive_built_in(
    reference,
    section="15",
    summary="the slot of the last token of each prefix",
    examples=_examples,
    faults={
        "prefixes longer than a row": Fault(
            "prefix_lens_tensor",
            lambda lengths: lengths + 2**24,
            applies=lambda case: bool(case.num_requests),
            cpu_only=True,
        ),
        "rows behind the pool": Fault(
            "req_pool_indices_tensor",
            lambda rows: rows + 2**20,
            applies=lambda case: bool(case.num_requests),
            cpu_only=True,
        ),
    },
    invariants=_invariants,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (get_last_loc,)
