"""vLLM's Triton attention and cache write under our names, with the buffers of its backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnproof.harness.adapters.single_engines import Bound, interprets
from attnproof.harness.adapters.vllm.installed import find
from attnproof.harness.model.call import Thunk

_PROGRAMS, _SEGMENTS = 128, 16
"""Programs below which vLLM's backend divides the keys of a decode, and into how many parts."""


def _bind(
    function: Callable[..., None],
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    *,
    max_query_len: int,
    max_seq_len: int,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out: torch.Tensor,
) -> Thunk:
    """Return vLLM's function bound to a batch, without rows of padding, which it would write."""
    mode = find(("v1.kv_cache_interface",), "KVQuantMode")
    quantised = key_cache.itemsize == 1
    if quantised:
        key_cache, value_cache = (c.view(torch.float8_e4m3fn) for c in (key_cache, value_cache))
    if interprets() and query.dtype == torch.bfloat16:  # of which the interpreter makes no products
        query = query.float()
        if not quantised and len(key_cache):  # the blocks of the table: a whole cache may be large
            named = block_table.clamp(0, len(key_cache) - 1)
            blocks, places = torch.unique(named, return_inverse=True)
            key_cache, value_cache = (cache[blocks].float() for cache in (key_cache, value_cache))
            block_table = places.view(block_table.shape).to(block_table.dtype)
    tokens = int(query_start_loc[-1])
    rows, heads = _PROGRAMS // key_cache.shape[2], (query.shape[1], _SEGMENTS)
    padded_size = 1 << (query.shape[2] - 1).bit_length()
    one = torch.ones(1, device=query.device)

    def partial_results(*last: int) -> torch.Tensor:
        return torch.empty(rows, *heads, *last, dtype=torch.float32, device=query.device)

    return partial(
        function,
        q=query[:tokens],
        k=key_cache,
        v=value_cache,
        out=out[:tokens],
        cu_seqlens_q=query_start_loc.contiguous(),
        max_seqlen_q=max_query_len,
        seqused_k=seq_lens.contiguous(),
        max_seqlen_k=max_seq_len,
        softmax_scale=scale,
        causal=True,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        block_table=block_table if block_table.stride(1) == 1 else block_table.contiguous(),
        softcap=logits_soft_cap or 0,
        q_descale=None,
        k_descale=one if k_scale is None else k_scale,
        v_descale=one if v_scale is None else v_scale,
        seq_threshold_3D=rows,
        num_par_softmax_segments=_SEGMENTS,
        softmax_segm_output=partial_results(padded_size),
        softmax_segm_max=partial_results(),
        softmax_segm_expsum=partial_results(),
        kv_quant_mode=mode.FP8_PER_TENSOR if quantised else mode.NONE,
    )


def cache_write(function: Callable[..., None]) -> Bound:
    """Adapt `triton_reshape_and_cache_flash`; its kernel takes one layout for both caches."""

    def bind(key: torch.Tensor, value: torch.Tensor, *args: Any) -> Thunk:
        key_cache, value_cache, slots, *others = args
        if key_cache.stride() != value_cache.stride():  # it would write beside the values' slots
            raise NotImplementedError("vLLM's kernel takes the strides of the keys for the values")
        dense = (key.shape[2], 1)
        rows = [new if new.stride()[1:] == dense else new.contiguous() for new in (key, value)]
        return partial(function, *rows, key_cache, value_cache, slots.contiguous(), *others)

    return Bound("reshape_and_cache_flash", bind)


def paged_attention(function: Callable[..., None]) -> Bound:
    """Adapt `unified_attention`."""
    return Bound("paged_attention", partial(_bind, function))


def decode_attention(function: Callable[..., None]) -> Bound:
    """Adapt `unified_attention` to one query a request."""

    def bind(
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        seq_lens: torch.Tensor,
        *args: Any,
        attn_bias: object = None,  # noqa: ARG001  # repeats the others
        **kwargs: Any,
    ) -> Thunk:
        starts = torch.arange(len(seq_lens) + 1, dtype=torch.int32, device=query.device)
        caches = key_cache, value_cache
        return _bind(function, query, *caches, starts, seq_lens, *args, max_query_len=1, **kwargs)

    return Bound("decode_attention", bind)
