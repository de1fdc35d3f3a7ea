"""Attention over the paged cache (SPEC.md section 8)."""

from __future__ import annotations

import torch

from attnproof.reference.checks.attention import (
    check_attention,
    check_one_query_each,
    check_query_rows,
)

__all__ = [
    "decode_attention",
    "paged_attention",
]


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
    """Compute causal attention of a batch over the paged cache in float64.

    `query`, `out` (T, Hq, D); caches (num_blocks, B, Hkv, D); `query_start_loc` (R+1,),
    `seq_lens` (R,), `block_table` (R, W) integers; `sliding_window` in keys;
    `max_query_len`, `max_seq_len` bounds in tokens. `out` has query's dtype, or float32
    or float64; its rows at or beyond `query_start_loc[-1]` are not written. Raise
    MetadataError for mismatched shapes, dtypes, devices, query heads that are not a
    multiple of the cache's, an `out` in the memory of an input, lengths out of bounds
    and blocks outside the cache. SPEC.md section 8.
    """
    operation = "paged_attention"
    check_attention(
        operation,
        query,
        key_cache,
        value_cache,
        seq_lens,
        block_table,
        scale,
        max_seq_len,
        sliding_window,
        logits_soft_cap,
        k_scale,
        v_scale,
        out,
    )
    check_query_rows(operation, query, query_start_loc, max_query_len, seq_lens.shape[0])
    starts = query_start_loc.tolist()
    for r, length in enumerate(seq_lens.tolist()):
        keys = _gather(key_cache, block_table[r], length, k_scale)
        values = _gather(value_cache, block_table[r], length, v_scale)
        computed = length - (starts[r + 1] - starts[r])
        for token in range(starts[r], starts[r + 1]):
            position = computed + token - starts[r]
            first = 0 if sliding_window is None else max(0, position - sliding_window + 1)
            seen = slice(first, max(first, position + 1))
            out[token] = _attend(
                query[token], keys[:, seen], values[:, seen], scale, logits_soft_cap
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
    attn_bias: object = None,  # noqa: ARG001  # repeats the others
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    out: torch.Tensor,
) -> None:
    """Compute attention of R requests with one query each over the paged cache, in float64.

    `query`, `out` (R, Hq, D); all other arguments as in `paged_attention`. A request of
    length 0 gets zeros. `attn_bias`, the builder's mask of these requests, repeats what
    the other arguments contain and is not read. SPEC.md section 8.
    """
    check_attention(
        "decode_attention",
        query,
        key_cache,
        value_cache,
        seq_lens,
        block_table,
        scale,
        max_seq_len,
        sliding_window,
        logits_soft_cap,
        k_scale,
        v_scale,
        out,
    )
    check_one_query_each(query, seq_lens.shape[0])
    for r, length in enumerate(seq_lens.tolist()):
        first = 0 if sliding_window is None else max(0, length - sliding_window)
        keys = _gather(key_cache, block_table[r], length, k_scale)[:, first:]
        values = _gather(value_cache, block_table[r], length, v_scale)[:, first:]
        out[r] = _attend(query[r], keys, values, scale, logits_soft_cap)


def _gather(
    cache: torch.Tensor, blocks: torch.Tensor, length: int, scale: torch.Tensor | None
) -> torch.Tensor:
    """Return the content of a request's blocks by position: (Hkv, length, D) float64."""
    block_size = cache.shape[1]
    pages = [cache[block] for block in blocks[: -(-length // block_size)].tolist()]
    if not pages:
        return cache.new_empty((cache.shape[2], 0, cache.shape[3]), dtype=torch.float64)
    held = torch.cat(pages)[:length].transpose(0, 1).contiguous()
    if cache.dtype == torch.uint8:
        held = held.view(torch.float8_e4m3fn)
    exact = held.double()
    if held.dtype == torch.float8_e4m3fn and scale is not None:
        exact *= float(scale)
    return exact


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    soft_cap: float | None,
) -> torch.Tensor:
    """Return one query token's attention to the keys it sees, (Hkv, n, D): (Hq, D) float64."""
    if not keys.shape[1]:
        return torch.zeros_like(query, dtype=torch.float64)
    # (Hkv, Hq / Hkv, D): query heads that share a kv head are adjacent.
    heads = query.double().reshape(keys.shape[0], -1, query.shape[1])
    scores = scale * (heads @ keys.mT)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    return (torch.softmax(scores, dim=-1) @ values).flatten(0, 1)
