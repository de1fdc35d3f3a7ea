"""Check the output and the cache of an attention call from the batch's numbers alone.

Attention is computed here for all tokens at once over the keys that each must see. The
reference works request by request; the two share no code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.layers.attention import AttentionInputs, as_words
from attnproof.harness.cases.layers.tolerance import close, farthest
from attnproof.harness.consumer.batch import expected_tokens_uncached
from attnproof.harness.consumer.diagnosis import token_name
from attnproof.harness.consumer.visible_keys import ExpectedTokens, Mask, VisibleKeys
from attnproof.harness.model.case import Batch
from attnproof.harness.model.violation import Violation

_MOST_SCORES = 200_000
"""Largest number of scores (tokens times keys times heads) that is computed here."""


def attention_violations(
    attention: AttentionInputs,
    query: torch.Tensor,
    out: Any,
    field: str,
    *,
    scale: float,
    window: int = 0,
    soft_cap: float = 0.0,
) -> Iterator[Violation]:
    """Check `out` (T, Hq, D) against attention of `query` over the keys that each token must see.

    Batches above `_MOST_SCORES` are not checked.
    """
    visible = _visible_keys(attention.batch, Mask(window=window))
    tokens = len(visible.rows)
    if not tokens or tokens * int(visible.stop.max()) * query.shape[1] > _MOST_SCORES:
        return
    expected = _attended(attention, visible, query[:tokens], scale, soft_cap)
    if not close(expected.to(out.device), out):
        place = farthest(expected, out)
        row = f"token {place[0]}, of request {visible.rows[place[0]]}," if place else "a token"
        text = f"the output of {row} is not attention over the keys that it must see"
        yield Violation(field, "is not attention over the batch", text)


def _visible_keys(batch: Batch, mask: Mask) -> VisibleKeys:
    """Return the keys that the batch's tokens must see.

    The first tokens of a query that is longer than its sequence see none.
    """
    lens, computed = (np.array(n, np.int64) for n in (batch.query_lens, batch.computed_lens))
    table = np.zeros((len(lens), max(map(len, batch.blocks), default=0)), np.int64)
    for row, blocks in enumerate(batch.blocks):
        table[row, : len(blocks)] = blocks
    rows = np.repeat(np.arange(len(lens)), lens)
    positions = np.arange(len(rows)) + np.repeat(computed - (np.cumsum(lens) - lens), lens)
    stop = np.maximum(0, positions + 1)
    return VisibleKeys(rows, np.minimum(mask.first(positions), stop), stop, table, batch.block_size)


def _attended(
    attention: AttentionInputs,
    visible: VisibleKeys,
    query: torch.Tensor,
    scale: float,
    soft_cap: float,
) -> torch.Tensor:
    number, rows, positions, slots = visible.keys()
    seen = (number[:, None] == rows) & (positions < visible.stop[:, None])
    seen &= positions >= visible.first[:, None]
    group = query.shape[1] // attention.shape.num_kv_heads
    keys, values = (
        torch.from_numpy(cache_contents(attention, half)[slots])
        .double()
        .repeat_interleave(group, 1)
        for half in (0, 1)
    )
    scores = scale * torch.einsum("qhd,khd->qhk", query.detach().cpu().double(), keys)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    scores = scores.masked_fill(torch.from_numpy(~seen)[:, None], -torch.inf)
    weights = torch.softmax(scores, dim=-1).nan_to_num()  # a token that sees no key
    return torch.einsum("qhk,khd->qhd", weights, values)


def cache_contents(attention: AttentionInputs, half: int) -> np.ndarray:
    """Return (slots, Hkv, D) float32, keys (half 0) or values (1) as a kernel reads them."""
    shape = attention.shape
    content, scale = ((attention.keys, shape.k_scale), (attention.values, shape.v_scale))[half]
    words = torch.from_numpy(as_words(content, shape.cache_dtype, scale))
    quantised = shape.cache_dtype.itemsize == 1
    floats = words.view(torch.float8_e4m3fn if quantised else shape.dtype).float()
    numbers: np.ndarray = (floats * scale if quantised else floats).numpy()
    return numbers.reshape(-1, *numbers.shape[2:])


def new_key_violations(
    attention: AttentionInputs, words: torch.Tensor, field: str
) -> Iterator[Violation]:
    """Check that the cache holds the keys and values of the batch's tokens.

    `words` is the cache as integers, (2, num_blocks, B, Hkv, D).
    """
    expected, shape = expected_tokens_uncached(attention.batch), attention.shape
    tokens = np.arange(len(expected.requests))
    pairs = ((attention.keys, shape.k_scale), (attention.values, shape.v_scale))
    for half, (content, scale) in enumerate(pairs):
        right = content.reshape(-1, *content.shape[2:])[expected.slots]
        same = read_back(expected, words[half], tokens) == as_words(right, shape.cache_dtype, scale)
        yield from read_back_violations(expected, same, tokens, field)


def read_back(expected: ExpectedTokens, words: torch.Tensor, tokens: np.ndarray) -> np.ndarray:
    """Return (n, Hkv, D) words stored at the slots of `tokens`.

    `words` is a half of the cache as integers, (num_blocks, B, Hkv, D).
    """
    stored: np.ndarray = words.cpu().numpy().reshape(-1, *words.shape[2:])[expected.slots[tokens]]
    return stored


def read_back_violations(
    expected: ExpectedTokens, same: np.ndarray, tokens: np.ndarray, field: str
) -> Iterator[Violation]:
    """Yield a violation for the first of `tokens` whose stored words differ, if any.

    `same` (n, Hkv, D) is True where the stored word equals the written one.
    """
    wrong = ~same.all((1, 2))
    if wrong.any():
        token = int(tokens[int(np.argmax(wrong))])
        name, slot = token_name(expected, token), expected.slots[token]
        text = f"{name} reads at slot {slot} other words than it wrote"
        yield Violation(field, "does not read back what was written", text)
