"""Slices of a batch in the operations of SPEC.md section 3: made from cuts, and spoilt."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Call, Fault
from attnproof.harness.operations.shared.metadata import batch_of, metadata_faults, wrong_type
from attnproof.reference.interface import MetadataError, UBatchSlice

Span = list[int]
"""[r0, r1, t0, t1]: requests [r0, r1) and tokens [t0, t1)."""


def spans_at(batch: Batch, cuts: list[int]) -> list[Span]:
    """The slices that cutting the tokens at `cuts` gives; those of no token are left out.

    The last slice takes the padded rows and tokens behind the last request.
    """
    offsets = [0, *accumulate(batch.query_lens)]
    rows = batch.num_requests + batch.padded_requests
    tokens = batch.num_tokens + batch.padded_tokens
    bounds = sorted({0, tokens, *(cut for cut in cuts if 0 < cut < tokens)})
    spans = []
    for t0, t1 in pairwise(bounds):
        r0 = bisect_right(offsets, t0, hi=batch.num_requests) - 1
        r1 = rows if t1 == tokens else bisect_right(offsets, t1 - 1, hi=batch.num_requests)
        spans.append([max(0, r0), r1, t0, t1])
    return spans


def ubatch_of(span: Span) -> UBatchSlice:
    """The span as the operations take it."""
    return UBatchSlice(slice(span[0], span[1]), slice(span[2], span[3]))


def sliceable(batch: Batch, cut: bool) -> Batch:
    """The batch with at least one token, without the share of a rank if a request may be cut."""
    changes: dict[str, Any] = {}
    if not batch.num_tokens + batch.padded_tokens:
        changes["padded_tokens"] = 1
    if cut:
        changes["dcp_local_seq_lens"] = None
    return msgspec.structs.replace(batch, **changes)


def shapes() -> Iterator[tuple[str, Batch, list[int]]]:
    """Batches and cuts that both ubatch operations must get right."""
    spec = make_batch([8, 8, 8], [24, 12, 0], 4)
    yield "cut at both ends (K3)", spec, [4, 12]
    yield "starts inside a request (K1)", spec, [12]
    yield "cut between requests", spec, [8, 16]
    yield "two cuts inside one request", make_batch([20], [7], 4), [5, 11]
    yield "one token a slice", make_batch([2, 3], [4, 0], 2), [1, 2, 3, 4]
    yield "no cut", spec, []
    yield (
        "all optional fields (K2)",
        make_batch(
            [3, 2, 4],
            [5, 0, 1],
            4,
            causal=False,
            logits_indices=(2, 4, 8),
            logits_padding=2,
            encoder_seq_lens=(7, 8, 9),
            dcp_local_seq_lens=(4, 1, 3),
        ),
        [3, 5],
    )
    yield (
        "fields of a subclass (K2)",
        make_batch([3, 2, 4], [5, 0, 1], 4, subclassed=True, spare_slots=2, padded_requests=1),
        [3, 6],
    )
    counted = make_batch([4, 4], [0, 0], 4, num_logits=2)
    yield "count of sampled tokens without their indices", counted, [4]
    yield "no sampled token in a slice", make_batch([4, 4], [0, 0], 4, logits_indices=(7,)), [4]
    yield (
        "padded rows and tokens",
        make_batch([1, 1, 1], [3, 9, 2], 4, padded_requests=2, padded_tokens=5),
        [2],
    )
    yield "padded rows, no padded tokens", make_batch([2, 2], [3, 1], 4, padded_requests=2), [2]
    yield "dummy run", make_batch([], [], 4, padded_requests=3, padded_tokens=3, query_slack=1), []
    yield "idle rows with a history", make_batch([0, 3, 0, 2], [4, 1, 6, 0], 4), [1, 3]
    yield "strided int64", make_batch([5, 6], [2, 0], 2, strided=True, dtype="int64"), [3, 8]
    yield "many slices", make_batch([2] * 20, list(range(20)), 4), list(range(3, 40, 3))
    yield "slices in graph padding", make_batch([2, 3], [4, 0], 4, padded_tokens=6), [4, 7, 9]
    yield (
        "padded rows and slices in padding",
        make_batch([2, 1], [4, 0], 4, padded_requests=2, padded_tokens=4),
        [2, 5],
    )
    yield "int64 offsets only", make_batch([5, 6], [2, 0], 2, dtype="int64 offsets"), [3]
    yield "int64 lengths only", make_batch([5, 6], [2, 0], 2, dtype="int64 lengths"), [3]
    yield "int64 computed only", make_batch([5, 6], [2, 0], 2, dtype="int64 computed"), [3]
    yield "more requests than a kernel tile", make_batch([1] * 1500, [2] * 1500, 4), [700, 1100]


def _put_slice(call: Call, spoilt: UBatchSlice) -> None:
    """Give the operation this slice, in a list if it takes a list."""
    call.args[0] = [spoilt] if isinstance(call.args[0], list) else spoilt


def _respan(field: str, **change: slice) -> Fault:
    """The first slice with its requests or tokens replaced."""

    def spoil(call: Call) -> None:
        _put_slice(call, replace(ubatch_of(call.facts["spans"][0]), **change))

    return Fault(field=field, spoil=spoil, error=MetadataError, applies=_has_slice)


def _has_slice(case: Case) -> bool:
    return case.num_tokens > 0 and case.params["cuts"] is not None and "picked" not in case.params


def _shift_tokens(call: Call) -> None:
    """Tokens of the batch's first request under the name of its last."""
    rows = call.facts["metadata"].num_reqs
    _put_slice(call, UBatchSlice(slice(rows - 1, rows), slice(0, 1)))


def _share_of_cut_request(call: Call) -> None:
    metadata = call.args[1]
    shares = torch.ones(metadata.num_reqs, dtype=torch.int32, device=metadata.seq_lens.device)
    call.args[1] = replace(metadata, dcp_local_seq_lens=shares)
    _put_slice(call, UBatchSlice(slice(0, 1), slice(0, 1)))


def _wrong_slice(call: Call) -> None:
    call.args[0] = ["seven"] if isinstance(call.args[0], list) else "seven"


SLICE_FAULTS: dict[str, Fault] = {
    **metadata_faults(1, sequences=True, logits=True),
    "no requests (K4)": _respan("request_slice", request_slice=slice(0, 0)),
    "no tokens (K4)": _respan("token_slice", token_slice=slice(0, 0)),
    "requests out of range": _respan("request_slice", request_slice=slice(0, 10_000)),
    "tokens out of range": _respan("token_slice", token_slice=slice(0, 10**6)),
    "negative start": _respan("token_slice", token_slice=slice(-2, -1)),
    "tokens of another request": Fault(
        field="token_slice",
        spoil=_shift_tokens,
        error=MetadataError,
        applies=lambda case: (
            _has_slice(case) and case.num_requests > 1 and batch_of(case).query_lens[0] > 0
        ),
    ),
    "share of a request that loses its tail": Fault(
        field="dcp_local_seq_lens",
        spoil=_share_of_cut_request,
        error=MetadataError,
        applies=lambda case: _has_slice(case) and batch_of(case).query_lens[0] > 1,
    ),
    "metadata of another type": wrong_type("metadata"),
    "slice of another type": Fault(
        field="ubatch_slice", spoil=_wrong_slice, error=TypeError, applies=_has_slice
    ),
}
