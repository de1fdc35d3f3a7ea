"""Rows of a pool or slots of a runner that requests have, in the orders that serving leaves."""

from __future__ import annotations

from random import Random

import numpy as np

from attnproof.harness.model.case import Batch


def request_rows(count: int, room: int, pattern: int) -> np.ndarray:
    """Return (count,) int64 distinct rows below `room`, in one of eight orders chosen by `pattern`.

    They fall, rise, rise but for inner ones that fall between ends that fit a run, or are in no
    order; and they are the last ones, or every second one if there is room.
    """
    places = np.arange(count, dtype=np.int64)
    order, spread = pattern % 4, pattern // 4 % 2 == 0
    if order == 0:
        places = places[::-1]
    elif order == 2:
        places[1:-1] = places[1:-1][::-1].copy()
    elif order == 3:
        places = np.array(Random(count).sample(range(count), count), dtype=np.int64)
    return 2 * places + 1 if spread and room > 2 * count else places + (room - count)


def pattern_of(batch: Batch) -> int:
    """Return the `pattern` of `request_rows`: it follows from the lengths of the batch."""
    return batch.num_tokens + sum(batch.computed_lens)
