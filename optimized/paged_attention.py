"""Attention over the paged cache (SPEC.md section 8)."""

from __future__ import annotations

import torch

from attnproof.reference.checks.attention import (
    check_attention,
    check_one_query_each,
    check_query_rows,
)

from .checking import checks
from .dispatch import on_device
from .host.paged_attention import Attention, attend_on_host
from .xformers_decode import attend_with_xformers, xformers_attends

__all__ = [
    "decode_attention",
    "paged_attention",
]

_checked = checks.follow(globals())


def paged_attention(
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
) -> None:
    """Compute causal attention of a batch over the paged cache, prefills and decodes alike.

    `query`, `out` (T, Hq, D); caches (num_blocks, B, Hkv, D); `query_start_loc` (R+1,),
    `seq_lens` (R,), `block_table` (R, W) integers; `sliding_window` in keys;
    `max_query_len`, `max_seq_len` bounds in tokens. Result and errors as in `reference`,
    computed in float32. On a device: one kernel, two if long sequences are divided into
    parts; no sync. SPEC.md section 8.
    """
    operation = "paged_attention"
    bounds = (max_seq_len, sliding_window, logits_soft_cap, k_scale, v_scale, out)
    if not _is_trusted(query):
        shared = (query, key_cache, value_cache, seq_lens, block_table, scale, *bounds)
        check_attention(operation, *shared)
        check_query_rows(operation, query, query_start_loc, max_query_len, seq_lens.shape[0])
    attend(
        Attention(
            query,
            key_cache,
            value_cache,
            query_start_loc,
            seq_lens,
            block_table,
            scale,
            max_query_len,
            *bounds,
        )
    )


def decode_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    *,
    max_seq_len: int,
    attn_bias: object = None,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out: torch.Tensor,
) -> None:
    """Compute attention of R requests with one query each over the paged cache.

    `query`, `out` (R, Hq, D); all other arguments as in `paged_attention`. A request of
    length 0 gets zeros. With `attn_bias`, the mask of these requests, xformers computes
    the attention if it supports the arguments, else the paged kernel. Result and errors as
    in `reference`. No sync. SPEC.md section 8.
    """
    bounds = (max_seq_len, sliding_window, logits_soft_cap, k_scale, v_scale, out)
    if not _is_trusted(query):
        shared = (query, key_cache, value_cache, seq_lens, block_table, scale, *bounds)
        check_attention("decode_attention", *shared)
        check_one_query_each(query, seq_lens.shape[0])
    attend_decodes(
        Attention(query, key_cache, value_cache, None, seq_lens, block_table, scale, 1, *bounds),
        attn_bias,
    )


def _is_trusted(query: object) -> bool:
    """True for input of kernels while checks are off; that of the host is always checked."""
    return not _checked and isinstance(query, torch.Tensor) and on_device(query)


def attend(a: Attention) -> None:
    """Compute `paged_attention` of checked arguments."""
    if not on_device(a.query):
        attend_on_host(a)
        return

    from .kernels.paged_attention_launch import attend_on_device

    attend_on_device(a)


def attend_decodes(a: Attention, attn_bias: object) -> None:
    """Compute `decode_attention` of checked arguments."""
    if attn_bias is not None and on_device(a.query) and xformers_attends(a, attn_bias):
        attend_with_xformers(a, attn_bias)
    else:
        attend(a)
