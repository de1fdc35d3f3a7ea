"""Slices of a batch for the operations of SPEC.md section 3, and their faults."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import metadata_faults, wrong_type
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference.interface import UBatchSlice

Span = tuple[int, int, int, int]
"""(r0, r1, t0, t1): requests [r0, r1) and tokens [t0, t1)."""


def spans_at(batch: Batch, cuts: list[int]) -> list[Span]:
    """Return the slices between the tokens `cuts`, without empty ones.

    The last slice includes the padded rows and tokens behind the last request.
    """
    offsets = [0, *accumulate(batch.query_lens)]
    rows = batch.num_requests + batch.padded_requests
    tokens = batch.num_tokens + batch.padded_tokens
    bounds = sorted({0, tokens, *(cut for cut in cuts if 0 < cut < tokens)})
    spans = []
    for t0, t1 in pairwise(bounds):
        r0 = bisect_right(offsets, t0, hi=batch.num_requests) - 1
        r1 = rows if t1 == tokens else bisect_right(offsets, t1 - 1, hi=batch.num_requests)
        spans.append((max(0, r0), r1, t0, t1))
    return spans


def ubatch_of(span: Span) -> UBatchSlice:
    """Return the span as an argument of the operations."""
    return UBatchSlice(slice(span[0], span[1]), slice(span[2], span[3]))


def sliceable(batch: Batch) -> Batch:
    """Return the batch with at least one token."""
    if batch.num_tokens + batch.padded_tokens:
        return batch
    return msgspec.structs.replace(batch, padded_tokens=1)


def ends_inside(batch: Batch, spans: Iterable[Span]) -> bool:
    """True if a slice ends inside a request: its rank's share of the keys is then unknown."""
    ends = {*accumulate(batch.query_lens)}
    return any(t1 < batch.num_tokens and t1 not in ends for _, _, _, t1 in spans)


def without_cut_shares(case: Case, spans: Iterable[Span]) -> Case:
    """Return the case without rank shares if a slice ends inside a request."""
    batch = batch_of(case)
    if not ends_inside(batch, spans):
        return case
    return msgspec.structs.replace(
        case, batch=msgspec.structs.replace(batch, dcp_local_seq_lens=None)
    )


def shapes() -> Iterator[tuple[str, Batch, list[int]]]:
    """Yield boundaries of both ubatch operations: name, batch and cuts."""
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
    unordered = make_batch(
        [4, 6, 3], [0, 5, 1], 4, logits_indices=(12, 3, 8, 8, 5), logits_padding=2
    )
    yield "sampled tokens in no order, one twice", unordered, [6]
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
    yield "int64 table only", make_batch([5, 6], [2, 0], 2, dtype="int64 table"), [3]
    yield (
        "more requests than a kernel tile",
        make_batch([1] * 1500, [row % 7 for row in range(1500)], 4),
        [700, 1100],
    )


def _has_slice(case: Case) -> bool:
    return case.num_tokens > 0 and case.params["cuts"] is not None and "picked" not in case.params


def _first_tokens_under_last_row(rows: int) -> UBatchSlice:
    """Return a slice of the last of `rows` requests with the first token of the batch."""
    return UBatchSlice(slice(rows - 1, rows), slice(0, 1))


def _cut_request_with_share(md: Any) -> UBatchSlice:
    """Return a slice that cuts the first request, after giving every request a share."""
    md.dcp_local_seq_lens = torch.ones(md.num_reqs, dtype=torch.int32, device=md.seq_lens.device)
    return UBatchSlice(slice(0, 1), slice(0, 1))


def _starts_with_two_requests(case: Case) -> bool:
    """True if the first two requests have tokens."""
    return _has_slice(case) and case.num_requests > 1 and min(batch_of(case).query_lens[:2]) > 0


def _span(r0: int, r1: int, t0: int, t1: int) -> UBatchSlice:
    return UBatchSlice(slice(r0, r1), slice(t0, t1))


_WRONG_ENDS: dict[str, Callable[[list[int]], UBatchSlice]] = {
    "a start in the next request": lambda starts: _span(0, 2, starts[1], starts[2]),
    "a start in the request before": lambda starts: _span(1, 2, starts[1] - 1, starts[2]),
    "a stop in the next request": lambda starts: _span(0, 1, 0, starts[1] + 1),
    "a stop in the request before": lambda starts: _span(0, 2, 0, starts[1]),
}
"""Name of a fault, and the function that makes a slice with it of the offsets."""


def slice_faults(slices: str, metadata: str) -> dict[str, Fault]:
    """Return the faults of an operation whose parameters have these names.

    `slices` takes one slice or a list of slices.
    """

    def put(old: Any, malformed: Any) -> Any:
        return [malformed] if isinstance(old, list) else malformed

    def respan(field: str, **change: slice) -> Fault:
        """Return the fault of the first slice with other requests or tokens."""

        def put_changed(old: Any) -> Any:
            return put(old, replace(old[0] if isinstance(old, list) else old, **change))

        return Fault(slices, put_changed, field, applies=_has_slice)

    def past(field: str, length: str) -> Fault:
        """Return the fault of the first slice with one request or token too many."""

        def put_changed(old: Any, md: Any) -> Any:
            first = old[0] if isinstance(old, list) else old
            wider = slice(getattr(first, field).start, getattr(md, length) + 1)
            return put(old, replace(first, **{field: wider}))

        return Fault(slices, put_changed, field, applies=_has_slice, reads=(metadata,))

    def put_span(make: Callable[[list[int]], UBatchSlice], old: Any, md: Any) -> Any:
        return put(old, make(md.query_start_loc_cpu.tolist()))

    return {
        **metadata_faults(metadata, sequences=True, logits=True),
        "no requests (K4)": respan("request_slice", request_slice=slice(0, 0)),
        "no tokens (K4)": respan("token_slice", token_slice=slice(0, 0)),
        "requests out of range": respan("request_slice", request_slice=slice(0, 10_000)),
        "tokens out of range": respan("token_slice", token_slice=slice(0, 10**6)),
        "requests one out of range": past("request_slice", "num_reqs"),
        "tokens one out of range": past("token_slice", "num_actual_tokens"),
        **{
            name: Fault(
                slices,
                partial(put_span, make),
                "token_slice",
                applies=_starts_with_two_requests,
                reads=(metadata,),
            )
            for name, make in _WRONG_ENDS.items()
        },
        "negative start": respan("token_slice", token_slice=slice(-2, -1)),
        "tokens of another request": Fault(
            slices,
            lambda old, md: put(old, _first_tokens_under_last_row(md.num_reqs)),
            "token_slice",
            applies=lambda case: (
                _has_slice(case) and case.num_requests > 1 and batch_of(case).query_lens[0] > 0
            ),
            reads=(metadata,),
        ),
        "share of a request that loses its tail": Fault(
            slices,
            lambda old, md: put(old, _cut_request_with_share(md)),
            "dcp_local_seq_lens",
            applies=lambda case: _has_slice(case) and batch_of(case).query_lens[0] > 1,
            reads=(metadata,),
        ),
        "metadata of another type": wrong_type(metadata, "metadata"),
        "slice of another type": Fault(
            slices,
            lambda old: put(old, "seven"),
            "ubatch_slice",
            TypeError,
            applies=_has_slice,
        ),
    }
