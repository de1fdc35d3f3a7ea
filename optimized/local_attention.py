"""Virtual batches for chunked local attention (SPEC.md section 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from reference.interface import CommonAttentionMetadata
from reference.interface.checks import (
    check_common_metadata,
    check_local_attention,
    check_logits,
    check_rows,
)
from reference.interface.fields import added_fields

from .dispatch import on_device, staging, upload
from .host.arrays import Array, array, as_dtype, common_dtype, flat_table
from .host.lengths import lengths_fit
from .host.local_attention import count_virtual, fill_virtual, gather_blocks
from .host.shapes import shapes_fit


def make_local_attention_virtual_batches(
    attn_chunk_size: int,
    common_attn_metadata: CommonAttentionMetadata,
    block_size: int = 0,
) -> CommonAttentionMetadata:
    """Turn each request into one virtual request per chunk that its query touches.

    `attn_chunk_size` and `block_size` are in tokens; the block table becomes
    (V, attn_chunk_size / block_size). Same result and errors as `reference`. On a
    device: lengths come from the CPU mirrors, one asynchronous copy takes them there
    and one kernel writes all device tensors; no sync. SPEC.md section 4.
    A field with one entry a request that a subclass adds costs one more launch.
    """
    md = common_attn_metadata
    plan = _checked_plan(attn_chunk_size, md, block_size)
    columns = attn_chunk_size // block_size
    virtual = (_on_device if on_device(md.query_start_loc) else _on_host)(md, plan, columns)
    encoder = md.encoder_seq_lens
    mirrors = virtual.mirrors
    made = CommonAttentionMetadata(
        query_start_loc=as_dtype(virtual.starts, md.query_start_loc.dtype),
        query_start_loc_cpu=as_dtype(mirrors.starts, md.query_start_loc_cpu.dtype),
        seq_lens=as_dtype(virtual.lengths, md.seq_lens.dtype),
        seq_lens_cpu=as_dtype(mirrors.lengths, md.seq_lens_cpu.dtype),
        num_computed_tokens_cpu=as_dtype(mirrors.computed, md.num_computed_tokens_cpu.dtype),
        num_reqs=plan.num_virtual,
        num_actual_tokens=md.num_actual_tokens,
        max_query_len=virtual.longest[0],
        max_seq_len=virtual.longest[1],
        block_table_tensor=virtual.table,
        slot_mapping=md.slot_mapping,
        causal=True,
        logits_indices_padded=md.logits_indices_padded,
        num_logits_indices=md.num_logits_indices,
        encoder_seq_lens=None if encoder is None else encoder[virtual.origin[0]],
    )
    return made if type(md) is CommonAttentionMetadata else _in_class_of(md, made, virtual)


@dataclass(slots=True)
class _Plan:
    """The batch's mirrors as arrays of one dtype, and how many virtual requests they make."""

    chunk: int
    dtype: torch.dtype
    offsets: Array
    seq_lens: Array
    num_virtual: int


class _Mirrors:
    """The virtual batch's CPU mirrors, to be filled."""

    __slots__ = ("computed", "lengths", "starts")

    def __init__(self, count: int, dtype: torch.dtype) -> None:
        self.starts = torch.empty(count + 1, dtype=dtype)
        self.lengths = torch.empty(count, dtype=dtype)
        self.computed = torch.empty(count, dtype=dtype)


@dataclass(slots=True)
class _Virtual:
    """Rows of the virtual batch: mirrors, their twins on the device, where they come from."""

    mirrors: _Mirrors
    starts: torch.Tensor
    lengths: torch.Tensor
    origin: Array
    """(2, V): each virtual request's request and chunk number."""
    table: torch.Tensor
    longest: tuple[int, int]
    owners: torch.Tensor | None = None
    """(V,) each virtual request's request on the device, None on the host."""


def _checked_plan(chunk: int, md: CommonAttentionMetadata, block_size: int) -> _Plan:
    """Cheap checks in the shared order; the shared check speaks up where one fails."""
    operation = "make_local_attention_virtual_batches"
    sizes_fit = type(chunk) is type(block_size) is int and chunk > 0 < block_size
    if not sizes_fit or chunk % block_size:
        check_local_attention(chunk, md, block_size)
    if not shapes_fit(md):
        check_common_metadata(operation, md)
    mirrors = (md.query_start_loc_cpu, md.seq_lens_cpu)
    dtype = common_dtype(md.query_start_loc, md.seq_lens, md.num_computed_tokens_cpu, *mirrors)
    offsets, seq_lens = array(mirrors[0], dtype), array(mirrors[1], dtype)
    computed = array(md.num_computed_tokens_cpu, dtype)
    bounds = (md.num_actual_tokens, md.max_query_len, md.max_seq_len)
    fit = lengths_fit(offsets, seq_lens, computed, *bounds)
    no_columns = md.num_reqs > 0 and md.block_table_tensor.shape[1] == 0
    if not fit or no_columns or md.dcp_local_seq_lens is not None:
        check_local_attention(chunk, md, block_size)
    check_logits(operation, md)
    check_rows(operation, md)
    return _Plan(chunk, dtype, offsets, seq_lens, count_virtual(offsets, seq_lens, chunk))


def _on_host(md: CommonAttentionMetadata, plan: _Plan, columns: int) -> _Virtual:
    count, dtype = plan.num_virtual, plan.dtype
    mirrors = _Mirrors(count, dtype)
    starts, lengths = torch.empty(count + 1, dtype=dtype), torch.empty(count, dtype=dtype)
    origin = np.empty((2, count), plan.offsets.dtype)
    longest = _fill(plan, mirrors, starts.numpy(), lengths.numpy(), origin)
    source = md.block_table_tensor
    table = torch.empty((count, columns), dtype=source.dtype)
    gather_blocks(*flat_table(source), source.shape[1], origin, table.numpy())
    return _Virtual(mirrors, starts, lengths, origin, table, longest)


def _on_device(md: CommonAttentionMetadata, plan: _Plan, columns: int) -> _Virtual:
    count, device = plan.num_virtual, md.query_start_loc.device
    mirrors = _Mirrors(count, plan.dtype)
    staged = staging(4 * count + 1, plan.dtype, device)
    packed = staged.numpy()
    origin = packed[2 * count + 1 :].reshape(2, count)
    longest = _fill(plan, mirrors, packed[: count + 1], packed[count + 1 : 2 * count + 1], origin)
    starts = torch.empty(count + 1, dtype=md.query_start_loc.dtype, device=device)
    lengths = torch.empty(count, dtype=md.seq_lens.dtype, device=device)
    source = md.block_table_tensor
    table = torch.empty((count, columns), dtype=source.dtype, device=device)
    uploaded = upload(staged, device)
    if count:
        from .kernels.local_attention import gather_virtual

        gather_virtual(uploaded, source, starts, lengths, table)
    else:
        starts.zero_()
    owners = uploaded[2 * count + 1 : 3 * count + 1]
    return _Virtual(mirrors, starts, lengths, origin, table, longest, owners)


def _fill(
    plan: _Plan, mirrors: _Mirrors, starts: Array, lengths: Array, origin: Array
) -> tuple[int, int]:
    return fill_virtual(
        plan.offsets,
        plan.seq_lens,
        plan.chunk,
        (mirrors.starts.numpy(), starts),
        (mirrors.lengths.numpy(), lengths),
        mirrors.computed.numpy(),
        origin,
    )


def _in_class_of(
    md: CommonAttentionMetadata, made: CommonAttentionMetadata, virtual: _Virtual
) -> CommonAttentionMetadata:
    """The virtual batch as an instance of the batch's class, with the fields which that adds."""
    added = {}
    for field, alignment in added_fields(type(md), CommonAttentionMetadata).items():
        value = getattr(md, field)
        rows = value is not None and alignment == "request"
        added[field] = _repeated(value, virtual) if rows else value
    return type(md)(**vars(made), **added)


def _repeated(value: Any, virtual: _Virtual) -> Any:
    """One entry for each virtual request: its request's."""
    if isinstance(value, torch.Tensor):
        owners = None if value.is_cpu else virtual.owners
        if owners is None:
            owners = torch.from_numpy(virtual.origin[0])
        return value.index_select(0, owners)
    if isinstance(value, np.ndarray):
        return value[virtual.origin[0]]
    return type(value)([value[owner] for owner in virtual.origin[0].tolist()])
