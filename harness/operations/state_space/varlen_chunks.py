"""Operation of SPEC.md section 17: chunks of packed tokens for scans of state-space layers.

Bug classes: a chunk of two rows, multiples counted from each row's start, a row without tokens
that takes the last chunk of the row before it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.reference import compute_varlen_chunk_metadata as reference


def _examples() -> Iterator[Example]:
    lengths = [3, 0, 6, 0]
    yield "rows without tokens", make_batch(lengths, [0] * 4, 4), {"chunk_size": 4}
    for total in (7, 8, 9):
        yield (
            f"{total} tokens, chunks of 4",
            make_batch([4, total - 4], [0, 0], 4),
            {"chunk_size": 4},
        )


def _cuts(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare the ends of chunks with the set of all ends of rows and multiples."""
    offsets, size = int64_array(call["query_start_loc"]), call["chunk_size"]
    starts = int64_array(outputs["cu_chunk_seqlens"])
    ends = np.unique(np.concatenate([offsets, np.arange(0, offsets[-1], size)]))
    if starts.tolist() != ends.tolist():
        yield Violation("cu_chunk_seqlens", "does not end chunks at the rows' ends and multiples")
        return
    rows = np.searchsorted(offsets, starts[:-1], side="right") - 1
    if int64_array(outputs["seq_idx_chunks"]).tolist() != rows.tolist():
        yield Violation("seq_idx_chunks", "is not the row of the chunk's tokens")
    last = np.where(np.diff(offsets) > 0, np.searchsorted(starts, offsets[1:]) - 1, -1)
    if int64_array(outputs["last_chunk_indices"]).tolist() != last.tolist():
        yield Violation("last_chunk_indices", "is not the chunk of the row's last token")


compute_varlen_chunk_metadata = derive_built_in(
    reference,
    section="17",
    summary="chunks of packed tokens for the scan of state-space layers",
    examples=_examples,
    invariants=_cuts,
    may_sync=lambda _: True,
)

OPERATIONS = (compute_varlen_chunk_metadata,)
