"""Attention over the paged cache on the CPU: gathered blocks and PyTorch's matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

_MOST_SCORES: Final = 1 << 22
"""Scores computed at a time: 16 MiB of float32."""
_MOST_KEYS: Final = 1 << 11
"""Approximate number of positions gathered at a time: more do not fit the CPU's caches."""


class Attention(NamedTuple):
    """Arguments of `paged_attention`; without offsets each request has one query."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    query_start_loc: torch.Tensor | None
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    scale: float
    max_query_len: int
    max_seq_len: int
    sliding_window: int | None
    logits_soft_cap: float | None
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None
    out: torch.Tensor


class _Piece(NamedTuple):
    """Keys and values at consecutive positions of a request."""

    first: int
    """Position of the first key."""
    keys: torch.Tensor
    """(Hkv, n, D) float32, as `values`."""
    values: torch.Tensor


class _State(NamedTuple):
    """Online softmax over the keys that were read."""

    top: torch.Tensor
    """(Hkv, rows, 1) highest score."""
    sums: torch.Tensor
    """(Hkv, rows, 1) sum of weights."""
    attended: torch.Tensor
    """(Hkv, rows, D) weighted sum of values."""


def attend_on_host(a: Attention) -> None:
    """Fill `out` request by request in float32, with a bounded number of keys and scores."""
    seq_lens = a.seq_lens.tolist()
    starts = range(len(seq_lens) + 1) if a.query_start_loc is None else a.query_start_loc.tolist()
    heads = max(1, a.query.shape[1])
    for r, seq_len in enumerate(seq_lens):
        first, stop = starts[r], starts[r + 1]
        at_once = max(1, _MOST_SCORES // (heads * max(1, min(seq_len, _MOST_KEYS))))
        for token in range(first, stop, at_once):
            last = min(token + at_once, stop)
            _attend(a, a.block_table[r], token, last, seq_len - (stop - token))


def _attend(a: Attention, blocks: torch.Tensor, first: int, stop: int, position: int) -> None:
    """Compute tokens [first, stop), the first of them at `position`, over pieces of the keys."""
    tokens, (heads, head_size), kv_heads = stop - first, a.query.shape[1:], a.key_cache.shape[2]
    queries = a.query[first:stop].float().view(tokens, kv_heads, -1, head_size)
    queries = queries.permute(1, 2, 0, 3).reshape(kv_heads, -1, head_size)
    end = position + tokens
    lowest = 0 if a.sliding_window is None else max(0, position - a.sliding_window + 1)
    state: _State | None = None
    for piece in _pieces(a, blocks, lowest, end):
        scores = _scores(a, queries @ piece.keys.mT)
        unseen = _unseen(a, tokens, position, piece)
        if unseen is not None:
            scores.view(kv_heads, -1, *unseen.shape).masked_fill_(unseen, -torch.inf)
        state = _with(state, scores, piece.values)
    if state is None:
        a.out[first:stop].zero_()
        return
    attended = state.attended / torch.where(state.sums != 0, state.sums, 1.0)
    shape = (kv_heads, heads // kv_heads, tokens, head_size)
    a.out[first:stop].view(tokens, kv_heads, -1, head_size).copy_(
        attended.view(shape).permute(2, 0, 1, 3)
    )


def _with(state: _State | None, scores: torch.Tensor, values: torch.Tensor) -> _State:
    """Return the state after more keys; `scores` is overwritten."""
    top = scores.amax(-1, keepdim=True)
    if state is not None:
        top = torch.maximum(top, state.top)
    # A row without a visible key has -inf as its top: any finite number avoids inf - inf.
    finite = top.clamp(min=torch.finfo(torch.float32).min)
    weights = scores.sub_(finite).exp_()
    sums, attended = weights.sum(-1, keepdim=True), weights @ values
    if state is None:
        return _State(top, sums, attended)
    shrunk = (state.top - finite).exp_()
    return _State(top, state.sums * shrunk + sums, state.attended * shrunk + attended)


def _pieces(a: Attention, blocks: torch.Tensor, lowest: int, end: int) -> Iterator[_Piece]:
    """Yield positions [lowest, end) of a request in order, gathered from its blocks."""
    block_size = a.key_cache.shape[1]
    step = max(1, _MOST_KEYS // block_size) * block_size
    for base in range(lowest // block_size * block_size, end, step):
        first, stop = max(base, lowest), min(base + step, end)
        ids = blocks[base // block_size : -(-stop // block_size)].long()
        yield _Piece(
            first,
            _gather(a.key_cache, ids, first - base, stop - base, a.k_scale),
            _gather(a.value_cache, ids, first - base, stop - base, a.v_scale),
        )


def _gather(
    cache: torch.Tensor, ids: torch.Tensor, first: int, stop: int, scale: torch.Tensor | None
) -> torch.Tensor:
    """Return positions [first, stop) of the blocks `ids`: (Hkv, n, D) float32."""
    quantised = cache.itemsize == 1
    pages = (cache.view(torch.uint8) if quantised else cache)[ids]
    held = pages.flatten(0, 1)[first:stop].transpose(0, 1)
    if scale is None or not quantised:
        return held.float()
    return held.contiguous().view(torch.float8_e4m3fn).float().mul_(scale)


def _scores(a: Attention, products: torch.Tensor) -> torch.Tensor:
    if not a.logits_soft_cap:
        return products.mul_(a.scale)
    return products.mul_(a.scale / a.logits_soft_cap).tanh_().mul_(a.logits_soft_cap)


def _unseen(a: Attention, tokens: int, position: int, piece: _Piece) -> torch.Tensor | None:
    """Return keys after a token or before its window, (tokens, n) bool; None for one token."""
    if tokens == 1:  # pieces hold only keys that the token sees
        return None
    positions = torch.arange(position, position + tokens)[:, None]
    keys = torch.arange(piece.first, piece.first + piece.keys.shape[1])
    unseen = keys > positions
    if a.sliding_window is not None:
        unseen |= positions - keys >= a.sliding_window
    return unseen
