"""Decode attention by xformers' Triton split-k operator (SPEC.md section 8)."""

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
"""Keys of the operator's smallest tile; a block holds a whole number of tiles."""
_MOST_KEYS: Final = 64
"""Keys of the largest tile that is used."""
_OLDEST_GPU: Final = (8, 0)
"""Compute capability that the operator needs at least."""
_MOST_PROGRAMS: Final = 65_535
"""Limit of a grid's second dimension on CUDA: the operator has one program a kv head and row."""


def xformers_attends(a: Attention, attn_bias: object) -> bool:
    """True if the operator supports these decodes, judged on the host without a sync.

    The operator has no window, soft cap or scales, reads the cache as rows of one tensor,
    rounds to the dtype of the queries, and leaves rows without a key undefined.
    """
    return (
        _is_mask_of(attn_bias, a)
        and a.query.shape[0] * a.key_cache.shape[2] <= _MOST_PROGRAMS
        and a.query.shape[2] in _HEAD_SIZES
        and a.key_cache.dtype == a.query.dtype == a.out.dtype
        and not a.logits_soft_cap
        and (a.sliding_window is None or a.sliding_window >= a.max_seq_len)
        and _is_aligned(a.query)
        and all(map(_has_one_slot_stride, (a.key_cache, a.value_cache)))
        and _lane_supports(a.query)
    )


def attend_with_xformers(a: Attention, attn_bias: Any) -> None:
    """Fill `out` with the result of the operator, by one copy."""
    # Imported here: the first import of xformers takes seconds.
    from xformers.ops.fmha import Inputs
    from xformers.ops.fmha.triton_splitk import FwOp

    operator = FwOp.get_operator(None, block_n=math.gcd(a.key_cache.shape[1], _MOST_KEYS))
    # xformers' own dispatch requires its CUDA extension, which the operator does not use.
    inputs = Inputs(*_shaped(a), attn_bias, scale=a.scale)
    attended, _ = operator.apply(inputs, needs_gradient=False)
    a.out.copy_(attended.reshape(a.out.shape))


def _is_mask_of(attn_bias: Any, a: Attention) -> bool:
    """True if it is xformers' paged mask of these requests, each with one query and a key."""
    masks = sys.modules.get(_MASKS)  # if it is not imported, the argument is no such mask
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
    """True if each head is dense and starts at a multiple of 8 elements."""
    return heads.stride(-1) == 1 and heads.stride(-2) % 8 == 0


def _has_one_slot_stride(cache: torch.Tensor) -> bool:
    """True if the blocks are contiguous, so that all slots have one stride."""
    return cache.stride(0) == cache.shape[1] * cache.stride(1) and _is_aligned(cache)


def _lane_supports(query: torch.Tensor) -> bool:
    """True unless the GPU is older than those of the operator, or the interpreter would fail."""
    if not INTERPRETED:
        return torch.cuda.get_device_capability(query.device) >= _OLDEST_GPU
    # It multiplies bfloat16 as integers; heads of 128 make xformers query a GPU.
    cuda: bool = torch.cuda.is_available()
    return query.dtype == torch.float16 and (query.shape[2] != 128 or cuda)


def _shaped(a: Attention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return query, keys and values in the operator's shapes, heads that share keys grouped."""
    rows, heads, head_size = a.query.shape
    kv_heads = a.key_cache.shape[2]
    key, value = (cache.flatten(0, 1)[None] for cache in (a.key_cache, a.value_cache))
    if heads == kv_heads:
        return a.query[None], key, value
    group = heads // kv_heads
    shape = (1, key.shape[1], kv_heads, group, head_size)
    query = a.query.view(1, rows, kv_heads, group, head_size)
    return query, key[:, :, :, None].expand(shape), value[:, :, :, None].expand(shape)
