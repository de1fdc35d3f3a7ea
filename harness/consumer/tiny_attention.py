"""Attention in float64 over a cache that has a key and a value of its own in each live slot.

Every slot of a live block has others; all else is NaN. The cache is a function of the slot,
so block ids near 2**31 need no memory. Small batches only: it computes every score.
"""

from __future__ import annotations

import numpy as np

from attnproof.harness.consumer.visible_keys import VisibleKeys, scrambled

MOST_SCORES = 4096
_WIDTH = 4
"""Head size."""


def attention(visible: VisibleKeys, tokens: np.ndarray, live: np.ndarray) -> np.ndarray | None:
    """(n, 4) what each of `tokens` takes from the values that it sees; None if it is too much.

    `live` holds the ids of all blocks that any request has, in ascending order. The
    queries are those of the tokens' numbers. A token that sees no key gets zeros.
    """
    if len(tokens) * int(np.max(visible.stop, initial=1)) > MOST_SCORES:
        return None
    number, rows, positions, slots = visible.keys()
    if len(tokens) * len(slots) > MOST_SCORES:
        return None
    seen = (number[:, None] == rows) & (positions < visible.stop[:, None])
    seen &= positions >= visible.first[:, None]
    scores = np.where(seen, _floats(tokens, 0) @ _floats(slots, 1).T, -np.inf)
    largest = np.max(scores, axis=1, initial=-1e300, keepdims=True)
    weights = np.where(seen, np.exp(scores - largest), 0)
    total = weights.sum(1, keepdims=True)
    attended: np.ndarray = weights @ _floats(slots, 2) / np.where(total == 0, 1, total)
    # The NaN of dead slots is put in here: 0 * NaN would spread it to who does not see them.
    dead = ~np.isin(slots // visible.block_size, live)
    attended[(seen & dead).any(1)] = np.nan
    return attended


def _floats(numbers: np.ndarray, kind: int) -> np.ndarray:
    """(n, 4) numbers in [-1, 1) that belong to each of these."""
    bits = scrambled(numbers[:, None] * (3 * _WIDTH) + np.arange(_WIDTH) + kind * _WIDTH)
    floats: np.ndarray = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    return floats
