"""A peer for attention: `scaled_dot_product_attention` of torch, as a candidate `torch-sdpa`.

It gathers the keys and values of the block table inside the call, as an engine without a paged
kernel would, pads all requests to the longest, and never waits for the device. A soft cap, which
torch's function lacks, is computed with plain products.
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


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
    """Write the attention of one query a request to `out`."""
    paged_attention(
        query,
        key_cache,
        value_cache,
        torch.arange(len(seq_lens) + 1, device=query.device),
        seq_lens,
        block_table,
        scale,
        max_query_len=1,
        max_seq_len=max_seq_len,
        sliding_window=sliding_window,
        logits_soft_cap=logits_soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
        out=out,
    )


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
    """Write the causal attention of a batch over the paged cache to the rows of its tokens."""
    if not len(query) or not len(seq_lens):
        return
    starts, lengths = query_start_loc.long().contiguous(), seq_lens.long()[:, None]
    places = torch.arange(max(1, max_query_len), device=query.device)
    keys = torch.arange(max(1, max_seq_len), device=query.device)
    positions = (lengths - starts.diff()[:, None] + places)[..., None]
    visible = (keys <= positions) & (keys > positions - (sliding_window or 2**62))
    # A result wider than the queries is not rounded to their dtype; halves are slow on a CPU.
    dtype = (
        torch.promote_types(out.dtype, torch.float32) if query.device.type == "cpu" else out.dtype
    )
    rows = query[(starts[:-1, None] + places).clamp(max=len(query) - 1)].to(dtype)
    held = keys < lengths
    cached = [
        _gathered(cache, block_table, keys, held, factor).to(dtype)
        for cache, factor in ((key_cache, k_scale), (value_cache, v_scale))
    ]
    padded, key, value = (tensor.transpose(1, 2) for tensor in (rows, *cached))
    if logits_soft_cap is None:
        result = scaled_dot_product_attention(
            padded, key, value, attn_mask=visible[:, None], scale=scale, enable_gqa=True
        )
    else:
        result = _capped(padded, key, value, visible[:, None], scale, logits_soft_cap)
    # Without a visible key the result is 0.
    result = result.transpose(1, 2).where(visible.any(-1)[..., None, None], 0)
    tokens = torch.arange(len(query), device=query.device)
    requests = torch.searchsorted(starts, tokens, right=True).sub(1).clamp(0, len(seq_lens) - 1)
    columns = (tokens - starts[requests]).clamp(0, len(places) - 1)
    live = (tokens < starts[-1])[:, None, None]
    out[: len(query)] = result[requests, columns].to(out.dtype).where(live, out[: len(query)])


def _gathered(
    cache: torch.Tensor,
    block_table: torch.Tensor,
    keys: torch.Tensor,
    held: torch.Tensor,
    factor: torch.Tensor | None,
) -> torch.Tensor:
    """Return (R, S, Hkv, D) the keys or values of each request, 0 behind its sequence."""
    size, columns = cache.shape[1], block_table.shape[1]
    if not columns or not len(cache):
        return cache.new_zeros(len(held), len(keys), *cache.shape[2:], dtype=torch.float32)
    blocks = block_table[:, (keys // size).clamp(max=columns - 1)].long().where(held, 0)
    words = cache.view(torch.uint8) if cache.itemsize == 1 else cache
    numbers = words[blocks, keys % size]
    if cache.itemsize == 1:
        numbers = numbers.view(torch.float8_e4m3fn).float()
    if factor is not None:
        numbers = numbers * factor
    return numbers.masked_fill(~held[..., None, None], 0)


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """Return attention whose scores are capped by `cap * tanh(score / cap)`."""
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
    scores = query.float() @ key.float().transpose(2, 3) * scale
    scores = (cap * torch.tanh(scores / cap)).masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ value.float()).to(query.dtype)
