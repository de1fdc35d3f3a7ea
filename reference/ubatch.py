"""Slice a batch into micro-batches (ubatches) (SPEC.md section 3)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import torch

from .checks.common import (
    check_common_metadata,
    check_logits,
    check_queries,
    check_rows,
    check_sequences,
    check_slice,
    check_span,
    check_ubatch,
)
from .definition.definition import operation
from .definition.roles import Array, Object, Offsets
from .interface import MetadataError, UBatchSlice
from .interface.fields import added_fields
from .shared import CommonAttentionMetadata

__all__ = [
    "_make_metadata_with_slice",
    "slice_query_start_locs",
    "split_attn_metadata",
]


def _has_requests(operation: str, sizes: dict[str, int], request_slice: slice) -> None:
    check_slice(operation, "request_slice", request_slice, sizes["R"])


@operation(requires=(_has_requests,))
def slice_query_start_locs(
    query_start_loc: Offsets, request_slice: Annotated[slice, Object()]
) -> Annotated[torch.Tensor, Array("query offsets", ("?",))]:
    """Return the offsets of the requests in `request_slice`, rebased to 0.

    `query_start_loc` is (R+1,) int32 or int64; the result is a new tensor of its
    dtype and device with one entry more than requests. Raise MetadataError for a slice
    that is empty or out of range. SPEC.md section 3.
    """
    start, stop = request_slice.start, request_slice.stop
    return query_start_loc[start : stop + 1] - query_start_loc[start]


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Return the part of a batch within `ubatch_slice` as a batch of its own.

    A request cut at its start counts the tokens of the earlier micro-batch as computed; a
    request cut at its end loses its last tokens. The child has the class of the parent;
    fields that a subclass adds are cut as the subclass declares. Raise MetadataError for
    an empty slice, for tokens that are not those of the requests, and for
    `dcp_local_seq_lens` with a request cut at its end. SPEC.md section 3.
    """
    operation = "_make_metadata_with_slice"
    md = attn_metadata
    _check(operation, md)
    requests, tokens = check_ubatch(operation, ubatch_slice)
    r0, r1 = check_slice(operation, "request_slice", requests, md.num_reqs)
    t0, t1 = check_slice(operation, "token_slice", tokens, md.num_actual_tokens)
    offsets = md.query_start_loc_cpu.tolist()
    check_span(operation, offsets, r0, r1, t0, t1)
    if md.dcp_local_seq_lens is not None and offsets[r1] > t1:
        expected = "None, or no request cut at its end"
        raise MetadataError(operation, "dcp_local_seq_lens", "set", expected)

    starts = [min(max(offset, t0), t1) - t0 for offset in offsets[r0 : r1 + 1]]
    seq_lens, computed = [], []
    for r in range(r0, r1):
        lost_tail = max(0, offsets[r + 1] - t1)
        # Clipped to the request's own end: a slice may begin in the padding after it.
        lost_head = max(0, min(t0, offsets[r + 1]) - offsets[r])
        seq_lens.append(int(md.seq_lens_cpu[r]) - lost_tail)
        computed.append(int(md.num_computed_tokens_cpu[r]) + lost_head)
    longest = max(end - start for start, end in pairwise(starts))

    logits_indices, num_logits = _logits_in_slice(md, t0, t1)
    return type(md)(
        query_start_loc=_like(md.query_start_loc, starts),
        query_start_loc_cpu=_like(md.query_start_loc_cpu, starts),
        seq_lens=_like(md.seq_lens, seq_lens),
        seq_lens_cpu=_like(md.seq_lens_cpu, seq_lens),
        num_computed_tokens_cpu=_like(md.num_computed_tokens_cpu, computed),
        num_reqs=r1 - r0,
        num_actual_tokens=t1 - t0,
        max_query_len=longest or md.max_query_len,
        max_seq_len=max(seq_lens),
        block_table_tensor=md.block_table_tensor[r0:r1],
        slot_mapping=md.slot_mapping[t0:t1],
        causal=md.causal,
        logits_indices_padded=logits_indices,
        num_logits_indices=num_logits,
        encoder_seq_lens=None if md.encoder_seq_lens is None else md.encoder_seq_lens[r0:r1],
        dcp_local_seq_lens=None if md.dcp_local_seq_lens is None else md.dcp_local_seq_lens[r0:r1],
        **_added_in_slice(md, slice(r0, r1), slice(t0, t1)),
    )


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice], common_attn_metadata: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """Return one child batch a slice, in order.

    See `_make_metadata_with_slice` for a child and its errors. SPEC.md section 3.
    """
    _check("split_attn_metadata", common_attn_metadata)
    return [_make_metadata_with_slice(ubatch, common_attn_metadata) for ubatch in ubatch_slices]


def _check(operation: str, md: CommonAttentionMetadata) -> None:
    check_common_metadata(operation, md)
    check_queries(operation, md)
    check_sequences(operation, md)
    check_logits(operation, md)
    check_rows(operation, md)


def _logits_in_slice(
    md: CommonAttentionMetadata, t0: int, t1: int
) -> tuple[torch.Tensor | None, int | None]:
    """Return the sampled tokens in [t0, t1), rebased to t0, and their number."""
    if md.logits_indices_padded is None:
        return None, None
    indices = md.logits_indices_padded[: md.num_logits_indices].tolist()  # the rest is stale
    inside = [index - t0 for index in indices if t0 <= index < t1]
    return _like(md.logits_indices_padded, inside), len(inside)


def _added_in_slice(md: CommonAttentionMetadata, requests: slice, tokens: slice) -> dict[str, Any]:
    """Return the fields that a subclass adds, cut to the given requests and tokens."""
    added = {}
    for field, alignment in added_fields(type(md), CommonAttentionMetadata).items():
        value = getattr(md, field)
        if value is not None and alignment == "request":
            value = value[requests]
        elif value is not None and alignment == "row keys":
            inside = range(requests.start, requests.stop)
            value = {row - requests.start: value[row] for row in inside if row in value}
        elif value is not None and alignment == "token":
            value = value[tokens]
        added[field] = value
    return added


def _like(tensor: torch.Tensor, values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=tensor.dtype, device=tensor.device)
