"""The fields that later engines add to a batch (SPEC.md section 9), from a batch in numbers.

No two fields share a value, so a field that an operation drops or does not cut is detected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, make_dataclass
from dataclasses import fields as fields_of
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import structs

from attnproof.harness.cases.memory.arena import Piece
from attnproof.harness.model.case import Batch
from attnproof.reference.shared import CommonAttentionMetadata, CommonAttentionMetadataV32

BOUND = "seq_lens_cpu_upper_bound"
"""Field that may hold any upper bound of the lengths."""
_TENSORS = (
    "is_prefilling",
    "dcp_local_seq_lens_cpu_upper_bound",
    "rswa_prefix_lens",
    "replayssm_decode_base_cpu",
    BOUND,
)
REQUEST_FIELDS = (*_TENSORS, "req_idx")
TOKEN_FIELDS = ("positions",)
ROW_KEYS = "mm_req_doc_ranges"
"""Field that is a dict with rows as its keys."""
PLAIN_FIELDS = (ROW_KEYS, "max_logits_per_req")
_REQUEST, _WINDOW, _BASE = 1 << 24, 1 << 25, 1 << 26
"""First value of each field that follows from nothing else in the batch."""


def without_later_fields(batch: Batch) -> Batch:
    """Return the batch without the fields of later engines."""
    if not batch.later and batch.prompt_lens is None:
        return batch
    return structs.replace(batch, later=False, prompt_lens=None, bound_slack=0)


@cache
def later_class_of(base: type[Any]) -> type[Any]:
    """Make a subclass of a metadata class with the fields that it lacks."""
    known = fields_of(CommonAttentionMetadata) + fields_of(base)
    present = {f.name for f in known}
    added = [
        (f.name, f.type, field(default=None, metadata=f.metadata))
        for f in fields_of(CommonAttentionMetadataV32)
        if f.name not in present
    ]
    return make_dataclass(CommonAttentionMetadataV32.__name__, added, bases=(base,))


def pieces(
    batch: Batch,
    offsets: np.ndarray,
    seq_lens: np.ndarray,
    num_tokens: int,
    stale: int,
    step: int,
) -> Iterator[Piece]:
    """Yield the tensors as pieces of an arena; rows and tokens of padding hold 0."""
    rows = np.arange(len(seq_lens))
    query_lens = np.diff(offsets)
    positions = np.zeros(num_tokens, np.int64)
    firsts = np.repeat(seq_lens - offsets[1:], query_lens)
    positions[: len(firsts)] = np.arange(len(firsts)) + firsts
    spare = np.full(batch.spare_slots, stale, np.int64)
    yield Piece("positions", np.concatenate([positions, spare]), False, (step,))
    computed = seq_lens - query_lens
    prompts = np.ones(len(rows), np.int64)  # a request has at least one prompt token
    if batch.prompt_lens is not None:
        prompts[:] = 0
        prompts[: len(batch.prompt_lens)] = batch.prompt_lens
        yield Piece("is_prefilling", computed < prompts, True, (step,))
    # The lengths of prefills are exact: no draft of theirs can be rejected.
    loose = (query_lens > 0) & (computed >= prompts) & (computed > 0)
    bound = seq_lens + np.where(loose, batch.bound_slack, 0)
    yield Piece(BOUND, bound.astype(np.int32), True, (step,))
    if batch.dcp_local_seq_lens is not None:
        share = np.array(batch.dcp_local_seq_lens, np.int32) + 1
        yield Piece("dcp_local_seq_lens_cpu_upper_bound", share, True, (step,))
    yield Piece("req_idx", (_REQUEST + rows[::-1]).astype(np.int32), True, (step,))
    yield Piece("rswa_prefix_lens", (_WINDOW + rows).astype(np.int32), False, (step,))
    yield Piece("replayssm_decode_base_cpu", (_BASE + rows).astype(np.int32), True, (step,))


def fields(batch: Batch, offsets: np.ndarray, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return all fields by name; those without a value are None."""
    values = {name: tensors.get(name) for name in (*_TENSORS, *TOKEN_FIELDS)}
    values["req_idx"] = tensors["req_idx"].numpy()
    ranges = {row: [(0, row + 1)] for row, length in enumerate(batch.query_lens) if length > 1}
    most = None
    if batch.logits_indices is not None:
        held = np.searchsorted(np.sort(batch.logits_indices), offsets)
        most = max((int(end - start) for start, end in pairwise(held)), default=0)
    return values | {ROW_KEYS: ranges or None, "max_logits_per_req": most}
