"""SGLang's functions of torch and numpy under our names, for the lane cpu."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import numpy as np
import torch

from attnproof.harness.adapters.sglang.pool import ALLOCATION, function_of, pool_writer
from attnproof.harness.adapters.sglang.radix import radix_cache
from attnproof.harness.adapters.single_engines import Bound, UnfitError
from attnproof.harness.model.call import Thunk
from attnproof.reference.shared import CommonAttentionMetadata

_ALLOCATOR = ("sglang.srt.mem_cache.allocator.paged", "sglang.srt.mem_cache.allocator")
_LAYOUT = ("sglang.srt.layers.dcp.layout",)
_LOCAL = (
    "sglang.srt.layers.attention.local_attention",
    "sglang.srt.layers.attention.flashattention_backend",
)
_POSITION = ("sglang.srt.model_executor.forward_batch_info",)


def _alloc_extend() -> Bound:
    naive = function_of(_ALLOCATOR, "alloc_extend_naive")

    def bind(
        prefix_lens: Any, seq_lens: Any, last_loc: Any, free: Any, out: torch.Tensor, size: Any
    ) -> Thunk:
        return partial(naive, prefix_lens, seq_lens, last_loc, free, out, size, out.device)

    return Bound("alloc_extend", bind)


def _alloc_decode() -> Bound:
    naive = function_of(_ALLOCATOR, "alloc_decode_naive")

    def bind(seq_lens: torch.Tensor, last_loc: Any, free: Any, out: Any, size: Any) -> Thunk:
        # The allocator counts on the host's copy of the lengths, before the call.
        new_pages = int((seq_lens % size == 1 % size).sum())
        return partial(naive, seq_lens, last_loc, free, out, size, new_pages)

    return Bound("alloc_decode", bind)


def _compute_position() -> Bound:
    function = function_of(_POSITION, "compute_position_torch")
    return Bound(
        "compute_position", lambda prefixes, lengths, _sum: partial(function, prefixes, lengths)
    )


def _get_last_loc() -> Any:
    return function_of(ALLOCATION, "get_last_loc_torch")


def _get_dcp_lens() -> Any:
    function = function_of(_LAYOUT, "get_dcp_lens")
    if "interleave_size" not in signature(function).parameters:
        raise UnfitError("get_dcp_lens of the SGLang that is installed takes no interleave_size")
    return function


def _local_attention() -> Bound:
    """Adapt the function of arrays, called as SGLang's metadata builder does."""
    function = function_of(_LOCAL, "make_local_attention_virtual_batches")
    # Earlier releases shorten the chunk to whole pages of the longest sequence always.
    kept = {"preserve_attn_chunk_size": True}
    kept = kept if kept.keys() <= signature(function).parameters.keys() else {}

    def bind(chunk: Any, batch: CommonAttentionMetadata, page_size: Any = 0) -> Thunk:
        offsets, lengths = batch.query_start_loc_cpu.numpy(), batch.seq_lens_cpu.numpy()
        table = batch.block_table_tensor
        return partial(function, chunk, offsets, lengths, table, page_size, **kept)

    return Bound("make_local_attention_virtual_batches", bind, _virtual_batch)


def _virtual_batch(
    result: tuple[np.ndarray, np.ndarray, np.ndarray, torch.Tensor],
    _chunk: Any,
    batch: CommonAttentionMetadata,
    _page_size: Any = 0,
) -> CommonAttentionMetadata:
    """Return our batch of SGLang's four results; the other fields follow from them."""
    query_lens, offsets, lengths, table = result
    device = batch.query_start_loc.device
    starts, seq_lens = torch.from_numpy(offsets), torch.from_numpy(lengths)
    computed = torch.from_numpy(lengths - np.diff(offsets))
    return CommonAttentionMetadata(
        query_start_loc=starts.to(device, copy=True),
        query_start_loc_cpu=starts,
        seq_lens=seq_lens.to(device, copy=True),
        seq_lens_cpu=seq_lens,
        num_computed_tokens_cpu=computed.to(batch.num_computed_tokens_cpu.dtype),
        num_reqs=len(lengths),
        num_actual_tokens=batch.num_actual_tokens,
        max_query_len=int(query_lens.max()),
        max_seq_len=int(lengths.max()),
        block_table_tensor=table,
        slot_mapping=batch.slot_mapping,
    )


OPERATIONS: dict[str, Callable[[], Any]] = {
    "alloc_extend": _alloc_extend,
    "alloc_decode": _alloc_decode,
    "compute_position": _compute_position,
    "get_last_loc": _get_last_loc,
    "write_req_to_token_pool": partial(pool_writer, "torch_native"),
    "get_dcp_lens": _get_dcp_lens,
    "localize_dcp_indices": partial(function_of, _LAYOUT, "localize_dcp_indices"),
    "make_local_attention_virtual_batches": _local_attention,
    "RadixCache": radix_cache,
}
"""Functions that make each operation of the lane."""
