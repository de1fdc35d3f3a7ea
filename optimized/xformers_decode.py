"""Decode attention by xformers' Triton split-k operator, where it can (SPEC.md section 8)."""

from __future__ import annotations

import math
import sys
from typing import Any, Final

import torch

from .dispatch import INTERPRETED
from .host.paged_attention import Attention

_MASKS: Final = "xformers.ops.fmha.attn_bias"
_HEAD_SIZES: Final = (32, 64, 128, 256)
_LEAST_KEYS: Final = 16
"""Keys of the operator's smallest tile; a page holds a whole number of tiles."""
_MOST_KEYS: Final = 64
_MOST_PROGRAMS: Final = 65_535
"""Of a grid's second dimension on CUDA: the operator has one for each request's kv head."""


def xformers_attends(a: Attention, attn_bias: object) -> bool:
    """Whether the operator computes these decodes, as far as the host knows without a sync.

    It knows neither window nor soft cap nor scales, takes blocks as rows of one tensor,
    rounds to the queries' dtype, and promises nothing for a row without a key.
    """
    return (
        _is_mask_of(attn_bias, a)
        and a.query.shape[0] * a.key_cache.shape[2] <= _MOST_PROGRAMS
        and a.query.shape[2] in _HEAD_SIZES
        and a.key_cache.dtype == a.query.dtype == a.out.dtype
        and not a.logits_soft_cap
        and (a.sliding_window is None or a.sliding_window >= a.max_seq_len)
        and _is_aligned(a.query)
        and all(map(_is_one_run, (a.key_cache, a.value_cache)))
        and _interpreter_can(a.query)
    )


def attend_with_xformers(a: Attention, attn_bias: Any) -> None:
    """Fill `out` by the operator, with one copy. Imports xformers, which takes seconds once."""
    from xformers.ops.fmha import Inputs, memory_efficient_attention_forward
    from xformers.ops.fmha.triton_splitk import FwOp

    operator = FwOp.get_operator(None, block_n=math.gcd(a.key_cache.shape[1], _MOST_KEYS))
    query, key, value = _shaped(a)
    if INTERPRETED:
        # Only the operator itself takes tensors on the CPU.
        inputs = Inputs(query, key, value, attn_bias, scale=a.scale)
        attended, _ = operator.apply(inputs, needs_gradient=False)
    else:
        attended = memory_efficient_attention_forward(
            query, key, value, attn_bias, scale=a.scale, op=operator
        )
    a.out.copy_(attended.reshape(a.out.shape))


def _is_mask_of(attn_bias: Any, a: Attention) -> bool:
    """Whether it is xformers' paged mask of these requests, one query and a key for each."""
    masks = sys.modules.get(_MASKS)  # not imported: then nobody has made such a mask
    if masks is None or not isinstance(
        attn_bias, masks.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask
    ):
        return False
    rows, block_size = a.seq_lens.shape[0], a.key_cache.shape[1]
    queries, keys = attn_bias.q_seqinfo, attn_bias.k_seqinfo
    return (
        rows > 0
        and attn_bias.page_size == block_size
        and block_size % _LEAST_KEYS == 0
        and len(keys.seqlen_py) == attn_bias.block_tables.shape[0] == rows
        and queries.min_seqlen == queries.max_seqlen == 1
        and keys.min_seqlen > 0
    )


def _is_aligned(heads: torch.Tensor) -> bool:
    """Whether each head is a dense run that begins at a multiple of 8 elements."""
    return heads.stride(-1) == 1 and heads.stride(-2) % 8 == 0


def _is_one_run(cache: torch.Tensor) -> bool:
    """Whether the blocks of a half lie behind each other, so that slots have one stride."""
    return cache.stride(0) == cache.shape[1] * cache.stride(1) and _is_aligned(cache)


def _interpreter_can(query: torch.Tensor) -> bool:
    """The interpreter multiplies bfloat16 as integers; for heads of 128 a GPU is asked for."""
    if not INTERPRETED:
        return True
    cuda: bool = torch.cuda.is_available()
    return query.dtype == torch.float16 and (query.shape[2] != 128 or cuda)


def _shaped(a: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Query, keys and values as the operator takes them, heads in groups if they share keys."""
    rows, heads, head_size = a.query.shape
    kv_heads = a.key_cache.shape[2]
    key, value = (cache.flatten(0, 1)[None] for cache in (a.key_cache, a.value_cache))
    if heads == kv_heads:
        return a.query[None], key, value
    group = heads // kv_heads
    shape = (1, key.shape[1], kv_heads, group, head_size)
    query = a.query.view(1, rows, kv_heads, group, head_size)
    return query, key[:, :, :, None].expand(shape), value[:, :, :, None].expand(shape)
