"""Slice a batch into micro-batches (ubatches) (SPEC.md section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from attnproof.reference.checks.common import (
    check_common_metadata,
    check_logits,
    check_queries,
    check_rows,
    check_sequences,
    check_slice,
    check_span,
    check_ubatch,
)
from attnproof.reference.interface import MetadataError, UBatchSlice
from attnproof.reference.interface.fields import added_fields
from attnproof.reference.shared import CommonAttentionMetadata

from .checking import check_call, checks
from .dispatch import lazily, on_device
from .host import lengths
from .host import ubatch as loops
from .host.arrays import dense, pieces
from .host.lengths import dense_lengths, take_dtypes
from .host.shapes import lengths_dtype, shapes_fit

__all__ = [
    "_make_metadata_with_slice",
    "slice_query_start_locs",
    "split_attn_metadata",
]

if TYPE_CHECKING:
    from .kernels.ubatch import slice_rows_on_device
else:
    slice_rows_on_device = lazily("ubatch.slice_rows_on_device")

_checked = checks.follow(globals())

_SLICE = "_make_metadata_with_slice"
Bounds = tuple[int, int, int, int]
"""Requests [r0, r1) and tokens [t0, t1) of one slice."""


def slice_query_start_locs(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
    """Return the offsets of the requests in `request_slice`, rebased to 0.

    `query_start_loc` is (R+1,) int32 or int64; the result is a new tensor of its
    dtype and device with one entry more than requests. Raise MetadataError for a slice
    that is empty or out of range. SPEC.md section 3.
    """
    if _checked:
        check_call("slice_query_start_locs", **locals())
    start, stop = request_slice.start, request_slice.stop
    if not query_start_loc.is_cpu:
        return query_start_loc[start : stop + 1] - query_start_loc[start]
    dtype = query_start_loc.dtype
    offsets = dense(query_start_loc, dtype)
    rebased = offsets.new_empty(stop + 1 - start)
    loops.rebase(dtype is torch.int64, offsets.data_ptr(), start, stop + 1, rebased.data_ptr())
    return rebased


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Return the part of a batch within `ubatch_slice` as a batch of its own.

    Result and errors as in `reference`. Block-table rows, slots, encoder and dcp lengths
    and the fields of a subclass are views of the parent's. On a device: one kernel, no
    copy, and no sync unless the parent has logits indices. SPEC.md section 3.
    """
    return _children("_make_metadata_with_slice", [ubatch_slice], attn_metadata)[0]


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice], common_attn_metadata: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """Return one child batch a slice, in order; see `_make_metadata_with_slice`.

    On a device: one kernel for all children, whose offsets and lengths are disjoint
    parts of two buffers; with more than two, one small asynchronous copy. SPEC.md section 3.
    """
    return _children("split_attn_metadata", ubatch_slices, common_attn_metadata)


def _children(
    operation: str, ubatch_slices: list[UBatchSlice], md: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """Return one child batch a slice.

    Errors about the batch contain `operation`, errors about a slice always `_SLICE`.
    """
    rows = _rows(operation, md)
    bounds = []
    for ubatch in ubatch_slices:
        if _checked:
            _check_slice(ubatch, md, rows)
        bounds.append(_bounds(ubatch, md, rows))
    by_kernel = bool(bounds) and on_device(md.query_start_loc)
    sizes: list[int] = []
    for r0, r1, *_ in bounds:
        n = r1 - r0
        sizes += (n + 1, n, n) if by_kernel else (n + 1, n, n, n + 1, n)
    mirrors = pieces(rows.offsets.new_empty(sum(sizes)), sizes)
    if not by_kernel:
        return [_child(md, rows, b, mirrors[5 * u : 5 * u + 5]) for u, b in enumerate(bounds)]
    twins = slice_rows_on_device(md.query_start_loc, md.seq_lens, bounds)
    return [_child(md, rows, b, mirrors[3 * u : 3 * u + 3], twins[u]) for u, b in enumerate(bounds)]


@dataclass(slots=True)
class _Rows:
    """CPU mirrors of the parent, dense and of one dtype."""

    wide: bool
    """True if the dtype is int64, False if it is int32."""
    offsets: torch.Tensor
    seq_lens: torch.Tensor
    computed: torch.Tensor
    addresses: tuple[int, int, int]
    """Addresses of the three tensors."""


def _rows(operation: str, md: CommonAttentionMetadata) -> _Rows:
    """Return the mirrors of a batch, which is checked if checks are on."""
    if _checked and not shapes_fit(md):
        check_common_metadata(operation, md)
    dtype = lengths_dtype(md)
    wide, mirrors = dtype is torch.int64, dense_lengths(md, dtype)
    offsets, seq_lens, computed = mirrors
    addresses = offsets.data_ptr(), seq_lens.data_ptr(), computed.data_ptr()
    if _checked:
        bounds = md.num_actual_tokens, md.max_query_len, md.max_seq_len
        if not lengths.lengths_fit_at(wide, *addresses, md.num_reqs, *bounds):
            check_queries(operation, md)
            check_sequences(operation, md)
        check_logits(operation, md)
        check_rows(operation, md)
    return _Rows(wide, *mirrors, addresses)


def _bounds(ubatch: UBatchSlice, md: CommonAttentionMetadata, rows: _Rows) -> Bounds:
    requests, tokens = ubatch.request_slice, ubatch.token_slice
    r0, r1, t0, t1 = requests.start, requests.stop, tokens.start, tokens.stop
    if md.dcp_local_seq_lens is not None and int(rows.offsets[r1]) > t1:
        expected = "None, or no request cut at its end"
        raise MetadataError(_SLICE, "dcp_local_seq_lens", "set", expected)
    return r0, r1, t0, t1


def _check_slice(ubatch: UBatchSlice, md: CommonAttentionMetadata, rows: _Rows) -> None:
    requests, tokens = check_ubatch(_SLICE, ubatch)
    r0, r1 = check_slice(_SLICE, "request_slice", requests, md.num_reqs)
    t0, t1 = check_slice(_SLICE, "token_slice", tokens, md.num_actual_tokens)
    if not loops.spans_match(rows.wide, rows.addresses[0], md.num_reqs, r0, r1, t0, t1):
        check_span(_SLICE, rows.offsets.tolist(), r0, r1, t0, t1)


def _child(
    md: CommonAttentionMetadata,
    rows: _Rows,
    bounds: Bounds,
    mirrors: tuple[torch.Tensor, ...],
    twins: tuple[torch.Tensor, ...] = (),
) -> CommonAttentionMetadata:
    """Return the batch of one slice.

    `mirrors` are consecutive; `twins` its offsets and lengths if a kernel made them. Otherwise
    they are the last two mirrors.
    """
    r0, r1, t0, t1 = bounds
    n = r1 - r0
    num_written = 3 * n + 1 if twins else 5 * n + 2
    max_query_len, max_seq_len = loops.slice_rows(
        rows.wide, *rows.addresses, r0, r1, t0, t1, mirrors[0].data_ptr(), num_written
    )
    starts_cpu, seq_lens_cpu, computed_cpu = mirrors[:3]
    starts, seq_lens = twins or mirrors[3:]
    logits_indices, num_logits = _logits_in_slice(md, t0, t1)
    encoder, dcp = md.encoder_seq_lens, md.dcp_local_seq_lens
    child = CommonAttentionMetadata(  # by position: 0.5 us faster than by keyword
        starts,
        starts_cpu,
        seq_lens,
        seq_lens_cpu,
        computed_cpu,
        n,
        t1 - t0,
        max_query_len or md.max_query_len,
        max_seq_len,
        md.block_table_tensor[r0:r1],
        md.slot_mapping[t0:t1],
        md.causal,
        logits_indices,
        num_logits,
        None if encoder is None else encoder[r0:r1],
        None if dcp is None else dcp[r0:r1],
    )
    if rows.wide:  # any tensor of the batch is int64; others may be int32
        take_dtypes(child, md)
    return child if type(md) is CommonAttentionMetadata else _in_class_of(md, child, bounds)


def _in_class_of(
    md: CommonAttentionMetadata, child: CommonAttentionMetadata, bounds: Bounds
) -> CommonAttentionMetadata:
    """Return the child in the class of its parent, with the fields which that class adds."""
    cuts = {"request": slice(*bounds[:2]), "token": slice(*bounds[2:])}
    added: dict[str, Any] = {}
    for field, alignment in added_fields(type(md), CommonAttentionMetadata).items():
        value = getattr(md, field)
        cut = cuts.get(alignment)
        if alignment == "row keys" and value is not None:
            r0, r1, *_ = bounds
            added[field] = {row - r0: entry for row, entry in value.items() if r0 <= row < r1}
        else:
            added[field] = value if value is None or cut is None else value[cut]
    return type(md)(**vars(child), **added)


def _logits_in_slice(
    md: CommonAttentionMetadata, t0: int, t1: int
) -> tuple[torch.Tensor | None, int | None]:
    """Return the sampled tokens in [t0, t1), rebased to t0, and their number.

    Synchronises on a device: the number of tokens is the shape of the result.
    """
    if md.logits_indices_padded is None:
        return None, None
    indices = md.logits_indices_padded[: md.num_logits_indices]  # the rest is stale
    inside = indices[(indices >= t0) & (indices < t1)] - t0
    return inside, inside.shape[0]
