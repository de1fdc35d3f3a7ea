"""Micro-batch (ubatch) slicing (SPEC.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from reference.interface import CommonAttentionMetadata, MetadataError, UBatchSlice
from reference.interface.checks import (
    check_common_metadata,
    check_logits,
    check_queries,
    check_rows,
    check_sequences,
    check_slice,
    check_span,
    check_tensor,
    check_ubatch,
)
from reference.interface.fields import added_fields

from .dispatch import on_device
from .host.arrays import Array, array, as_dtype, common_dtype
from .host.lengths import lengths_fit
from .host.shapes import lengths_dtype
from .host.ubatch import slice_rows, spans_match

_SLICE = "_make_metadata_with_slice"
Bounds = tuple[int, int, int, int]
"""Requests [r0, r1) and tokens [t0, t1) of one slice."""


def slice_query_start_locs(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
    """Offsets of the requests in `request_slice`, rebased to 0.

    `query_start_loc` is (R+1,) int32 or int64; the result is a new tensor of its
    dtype and device with one entry more than requests. MetadataError for a slice
    that is empty or out of range. SPEC.md section 3.
    """
    operation = "slice_query_start_locs"
    check_tensor(operation, "query_start_loc", query_start_loc, 1)
    num_reqs = query_start_loc.shape[0] - 1
    start, stop = check_slice(operation, "request_slice", request_slice, num_reqs)
    if not query_start_loc.is_cpu:
        return query_start_loc[start : stop + 1] - query_start_loc[start]
    rebased = torch.empty(stop + 1 - start, dtype=query_start_loc.dtype)
    offsets = query_start_loc.numpy()
    np.subtract(offsets[start : stop + 1], offsets[start], out=rebased.numpy())
    return rebased


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """The part of a batch that lies in `ubatch_slice`, as a batch of its own.

    Same result and errors as `reference`; block-table rows, slots, encoder and dcp
    lengths and what a subclass adds are views of the parent's. On a device: one kernel,
    no copy, and no sync unless the parent carries logits indices. SPEC.md section 3.
    """
    return _children("_make_metadata_with_slice", [ubatch_slice], attn_metadata)[0]


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice], common_attn_metadata: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """One child batch a slice, in order; see `_make_metadata_with_slice`.

    On a device: one kernel for all children, whose offsets and lengths are disjoint
    parts of two buffers, and one small asynchronous copy. SPEC.md section 3.
    """
    return _children("split_attn_metadata", ubatch_slices, common_attn_metadata)


def _children(
    operation: str, ubatch_slices: list[UBatchSlice], md: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """`operation` is what errors about the batch name; those about a slice name the other."""
    rows = _checked_rows(operation, md)
    bounds = [_checked_bounds(ubatch, md, rows.offsets) for ubatch in ubatch_slices]
    if not bounds or not on_device(md.query_start_loc):
        return [_child(md, rows, b, None) for b in bounds]

    from .kernels.ubatch import slice_rows_on_device

    twins = slice_rows_on_device(md.query_start_loc, md.seq_lens, bounds)
    return [_child(md, rows, b, twin) for b, twin in zip(bounds, twins, strict=True)]


@dataclass(slots=True)
class _Rows:
    """The parent's CPU mirrors as contiguous arrays of one dtype."""

    dtype: torch.dtype
    offsets: Array
    seq_lens: Array
    computed: Array


def _checked_rows(operation: str, md: CommonAttentionMetadata) -> _Rows:
    if lengths_dtype(md) is None:
        check_common_metadata(operation, md)
    mirrors = (md.query_start_loc_cpu, md.seq_lens_cpu, md.num_computed_tokens_cpu)
    dtype = common_dtype(md.query_start_loc, md.seq_lens, *mirrors)
    rows = _Rows(dtype, *(array(mirror, dtype) for mirror in mirrors))
    bounds = (md.num_actual_tokens, md.max_query_len, md.max_seq_len)
    if not lengths_fit(rows.offsets, rows.seq_lens, rows.computed, *bounds):
        check_queries(operation, md)
        check_sequences(operation, md)
    check_logits(operation, md)
    check_rows(operation, md)
    return rows


def _checked_bounds(ubatch: UBatchSlice, md: CommonAttentionMetadata, offsets: Array) -> Bounds:
    requests, tokens = check_ubatch(_SLICE, ubatch)
    r0, r1 = check_slice(_SLICE, "request_slice", requests, md.num_reqs)
    t0, t1 = check_slice(_SLICE, "token_slice", tokens, md.num_actual_tokens)
    if not spans_match(offsets, r0, r1, t0, t1):
        check_span(_SLICE, offsets.tolist(), r0, r1, t0, t1)
    if md.dcp_local_seq_lens is not None and offsets[r1] > t1:
        expected = "None, or no request cut at its back"
        raise MetadataError(_SLICE, "dcp_local_seq_lens", "set", expected)
    return r0, r1, t0, t1


def _child(
    md: CommonAttentionMetadata,
    rows: _Rows,
    bounds: Bounds,
    twins: tuple[torch.Tensor, torch.Tensor] | None,
) -> CommonAttentionMetadata:
    """The batch of one slice; `twins` are its device offsets and lengths where a kernel made them.

    Without them the twins are written here, beside the mirrors.
    """
    r0, r1, t0, t1 = bounds
    num_reqs, dtype = r1 - r0, rows.dtype
    starts, seq_lens = _pair(num_reqs + 1, dtype, twins), _pair(num_reqs, dtype, twins)
    computed = torch.empty(num_reqs, dtype=dtype)
    max_query_len, max_seq_len = slice_rows(
        rows.offsets,
        rows.seq_lens,
        rows.computed,
        bounds,
        (starts[0].numpy(), starts[1].numpy()),
        (seq_lens[0].numpy(), seq_lens[1].numpy()),
        computed.numpy(),
    )
    start_twin, seq_lens_twin = twins or (starts[1], seq_lens[1])
    logits_indices, num_logits = _logits_in_slice(md, t0, t1)
    encoder, dcp = md.encoder_seq_lens, md.dcp_local_seq_lens
    child = CommonAttentionMetadata(
        query_start_loc=as_dtype(start_twin, md.query_start_loc.dtype),
        query_start_loc_cpu=as_dtype(starts[0], md.query_start_loc_cpu.dtype),
        seq_lens=as_dtype(seq_lens_twin, md.seq_lens.dtype),
        seq_lens_cpu=as_dtype(seq_lens[0], md.seq_lens_cpu.dtype),
        num_computed_tokens_cpu=as_dtype(computed, md.num_computed_tokens_cpu.dtype),
        num_reqs=num_reqs,
        num_actual_tokens=t1 - t0,
        max_query_len=max_query_len or md.max_query_len,
        max_seq_len=max_seq_len,
        block_table_tensor=md.block_table_tensor[r0:r1],
        slot_mapping=md.slot_mapping[t0:t1],
        causal=md.causal,
        logits_indices_padded=logits_indices,
        num_logits_indices=num_logits,
        encoder_seq_lens=None if encoder is None else encoder[r0:r1],
        dcp_local_seq_lens=None if dcp is None else dcp[r0:r1],
    )
    return child if type(md) is CommonAttentionMetadata else _in_class_of(md, child, bounds)


def _in_class_of(
    md: CommonAttentionMetadata, child: CommonAttentionMetadata, bounds: Bounds
) -> CommonAttentionMetadata:
    """The child as an instance of its parent's class, with the fields which that adds."""
    cuts = {"request": slice(*bounds[:2]), "token": slice(*bounds[2:])}
    added = {}
    for field, alignment in added_fields(type(md), CommonAttentionMetadata).items():
        value = getattr(md, field)
        cut = cuts.get(alignment)
        added[field] = value if value is None or cut is None else value[cut]
    return type(md)(**vars(child), **added)


def _pair(length: int, dtype: torch.dtype, twins: object) -> tuple[torch.Tensor, torch.Tensor]:
    """Two mirrors to fill, or the same one twice where the device twin exists."""
    mirror = torch.empty(length, dtype=dtype)
    return (mirror, mirror) if twins is not None else (mirror, torch.empty(length, dtype=dtype))


def _logits_in_slice(
    md: CommonAttentionMetadata, t0: int, t1: int
) -> tuple[torch.Tensor | None, int | None]:
    """The sampled tokens in [t0, t1), rebased; entries behind num_logits_indices are stale.

    How many there are decides the shape: on a device this synchronises.
    """
    if md.logits_indices_padded is None:
        return None, None
    indices = md.logits_indices_padded[: md.num_logits_indices]
    inside = indices[(indices >= t0) & (indices < t1)] - t0
    return inside, inside.shape[0]
