"""Attention in float64 over an imaginary cache whose content is a function of the slot.

Each slot of a live block has its own key and value; all other slots hold NaN. No cache is
allocated, so block ids near 2**31 need no memory. Every score is computed, which limits
the module to small batches.
"""

from __future__ import annotations

import numpy as np

from attnproof.harness.consumer.visible_keys import VisibleKeys, scrambled

MOST_SCORES = 4096
"""Largest number of scores (tokens times keys) that is computed."""
_WIDTH = 4
"""Head size."""


def attention(
    visible: VisibleKeys, tokens: np.ndarray, live: np.ndarray, block_size: int
) -> np.ndarray | None:
    """Return the attention output of `tokens`, (n, 4) float64; None above MOST_SCORES.

    `live` holds the ids of all blocks of `block_size` slots that belong to a request,
    ascending; the table of `visible` may have pages of another size. Queries are derived
    from the token indices. A token that sees no key gets zeros.
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
    # NaN is inserted here and not in the values: 0 * NaN would reach tokens that do not see it.
    dead = ~np.isin(slots // block_size, live)
    attended[(seen & dead).any(1)] = np.nan
    return attended


def _floats(numbers: np.ndarray, kind: int) -> np.ndarray:
    """Return (n, 4) float64 in [-1, 1), a function of each number and of `kind`."""
    bits = scrambled(numbers[:, None] * (3 * _WIDTH) + np.arange(_WIDTH) + kind * _WIDTH)
    floats: np.ndarray = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1
    return floats
