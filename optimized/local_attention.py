"""Virtual batches for chunked local attention (SPEC.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnproof.reference.interface.fields import added_fields
from attnproof.reference.shared import CommonAttentionMetadata

from .checking import check_call, checks
from .dispatch import lazily, on_device, staging, upload
from .host import local_attention as loops
from .host.arrays import pieces
from .host.lengths import dense_lengths, take_dtypes
from .host.shapes import lengths_dtype

__all__ = [
    "make_local_attention_virtual_batches",
]

_checked = checks.follow(globals())

if TYPE_CHECKING:
    from .kernels.local_attention import gather_virtual
else:
    gather_virtual = lazily("local_attention.gather_virtual")
_LOCAL = "make_local_attention_virtual_batches"


def make_local_attention_virtual_batches(
    attn_chunk_size: int,
    common_attn_metadata: CommonAttentionMetadata,
    block_size: int = 0,
) -> CommonAttentionMetadata:
    """Turn each request into one virtual request per chunk that its query touches.

    `attn_chunk_size` and `block_size` are in tokens; the block table becomes
    (V, attn_chunk_size / block_size). Result and errors as in `reference`. On a device:
    lengths come from the CPU mirrors, one asynchronous copy uploads them and one kernel
    writes all device tensors; no sync. A field of a subclass with one entry a request
    costs one more launch. SPEC.md section 4.
    """
    if _checked:
        check_call(_LOCAL, **locals())
    md = common_attn_metadata
    plan = _plan(attn_chunk_size, md, block_size)
    columns = attn_chunk_size // block_size
    rows = (_on_device if on_device(md.query_start_loc) else _on_host)(md, plan, columns)
    starts, starts_cpu, lengths, lengths_cpu, computed_cpu, longest, table, uploaded = rows
    max_query_len, max_seq_len = longest
    encoder = md.encoder_seq_lens
    virtual_batch = CommonAttentionMetadata(  # by position: 0.5 us faster than by keyword
        starts,
        starts_cpu,
        lengths,
        lengths_cpu,
        computed_cpu,
        plan.num_virtual,
        md.num_actual_tokens,
        max_query_len,
        max_seq_len,
        table,
        md.slot_mapping,
        True,
        md.logits_indices_padded,
        md.num_logits_indices,
        None if encoder is None else encoder[_requests(plan).numpy()],
    )
    if plan.wide:  # any tensor of the batch is int64; others may be int32
        take_dtypes(virtual_batch, md)
    if type(md) is CommonAttentionMetadata:
        return virtual_batch
    return _in_class_of(md, virtual_batch, plan, uploaded)


@dataclass(slots=True)
class _Plan:
    """Mirrors of a batch, dense and of one dtype, and its number of virtual requests."""

    wide: bool
    """True if the dtype is int64, False if it is int32."""
    offsets: torch.Tensor
    seq_lens: torch.Tensor
    batch: tuple[int, int, int, int]
    """Address of `offsets`, address of `seq_lens`, number of requests, chunk in tokens."""
    num_virtual: int


_Rows = tuple[
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    torch.Tensor,
    tuple[int, int],
    torch.Tensor,
    torch.Tensor | None,
]
"""Offsets and mirror, lengths and mirror, computed tokens, (longest query, longest sequence),
block table, and what was copied to the device, None on the host."""


def _plan(chunk: int, md: CommonAttentionMetadata, block_size: int) -> _Plan:
    """Count the virtual requests."""
    dtype = lengths_dtype(md)
    wide = dtype is torch.int64
    offsets, seq_lens, computed = dense_lengths(md, dtype)
    batch = offsets.data_ptr(), seq_lens.data_ptr(), md.num_reqs, chunk
    bounds = md.num_actual_tokens, md.max_query_len, md.max_seq_len
    count = loops.count_virtual(wide, *batch, computed.data_ptr(), *bounds)
    if count < 0 or md.dcp_local_seq_lens is not None:
        check_call(_LOCAL, chunk, md, block_size)
    return _Plan(wide, offsets, seq_lens, batch, count)


def _on_host(md: CommonAttentionMetadata, plan: _Plan, columns: int) -> _Rows:
    n = plan.num_virtual
    rows = plan.offsets.new_empty(5 * n + 2)
    starts_cpu, lengths_cpu, computed, starts, lengths = pieces(rows, (n + 1, n, n, n + 1, n))
    source = md.block_table_tensor
    table = source.new_empty(n, columns)
    place = source.data_ptr(), *source.stride(), source.shape[1]
    gathered = source.dtype is torch.int64, *place, table.data_ptr(), columns
    longest = _fill(plan, rows, starts, 2 * n + 1, gathered)
    return starts, starts_cpu, lengths, lengths_cpu, computed, longest, table, None


def _on_device(md: CommonAttentionMetadata, plan: _Plan, columns: int) -> _Rows:
    n, device = plan.num_virtual, md.query_start_loc.device
    rows = staging(7 * n + 2, plan.offsets.dtype, device)
    starts_cpu, lengths_cpu, computed, sent = pieces(rows, (n + 1, n, n, 4 * n + 1))
    longest = _fill(plan, rows, sent, 4 * n + 1)
    starts = torch.empty(n + 1, dtype=md.query_start_loc.dtype, device=device)
    lengths = torch.empty(n, dtype=md.seq_lens.dtype, device=device)
    source = md.block_table_tensor
    table = torch.empty(n, columns, dtype=source.dtype, device=device)
    uploaded = upload(sent, device)
    if n:
        gather_virtual(uploaded, source, starts, lengths, table)
    else:
        starts.zero_()
    return starts, starts_cpu, lengths, lengths_cpu, computed, longest, table, uploaded


def _fill(
    plan: _Plan,
    rows: torch.Tensor,
    twins: torch.Tensor,
    twin_words: int,
    gathered: tuple[Any, ...] = (False, 0, 0, 0, 0, 0, 0),
) -> tuple[int, int]:
    """Call `fill_virtual` for `rows`, `twins` and the gathered block table.

    Return the longest query and the longest sequence, in tokens.
    """
    outputs = plan.num_virtual, rows.data_ptr(), twins.data_ptr(), twin_words
    return loops.fill_virtual(plan.wide, *plan.batch, *outputs, *gathered)


def _requests(plan: _Plan) -> torch.Tensor:
    """Return the request of each virtual request, (V,), on the host."""
    n = plan.num_virtual
    rows, twins = plan.offsets.new_empty(3 * n + 1), plan.offsets.new_empty(4 * n + 1)
    _fill(plan, rows, twins, 4 * n + 1)
    return twins[2 * n + 1 : 3 * n + 1]


def _in_class_of(
    md: CommonAttentionMetadata,
    virtual_batch: CommonAttentionMetadata,
    plan: _Plan,
    uploaded: torch.Tensor | None,
) -> CommonAttentionMetadata:
    """Return the virtual batch in the class of `md`, with the fields which that class adds."""
    added, requests, n = {}, _requests(plan), plan.num_virtual
    owners = None if uploaded is None else uploaded[2 * n + 1 : 3 * n + 1]
    for field, alignment in added_fields(type(md), CommonAttentionMetadata).items():
        value = getattr(md, field)
        if value is None or alignment not in ("request", "row keys"):
            added[field] = value
        else:
            added[field] = _repeated(value, requests, owners)
    return type(md)(**vars(virtual_batch), **added)


def _repeated(value: Any, requests: torch.Tensor, owners: torch.Tensor | None) -> Any:
    """Repeat the entry of a request for each of its virtual requests.

    `requests` on the host and `owners` on the device are the request of each virtual one.
    """
    if isinstance(value, torch.Tensor):
        return value.index_select(0, requests if value.is_cpu or owners is None else owners)
    if isinstance(value, np.ndarray):
        return value[requests.numpy()]
    if isinstance(value, dict):
        return {v: value[row] for v, row in enumerate(requests.tolist()) if row in value}
    return type(value)([value[owner] for owner in requests.tolist()])
