"""Cases toward the gaps: engine steps whose features no test has, with other features changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from attnproof.harness.cases.coverage.features import STARTS, cells_of
from attnproof.harness.cases.variation.added_features import with_added_features
from attnproof.harness.model.case import Case

_CELLS = STARTS[-1]
_BYTES = -(-_CELLS // 8)


def toward_gaps(
    steps: Sequence[Case],
    tested: Iterable[int],
    count: int,
    seed: int,
    problem: Callable[[Case], str],
) -> Iterator[tuple[str, Case]]:
    """Yield up to `count` variations of engine steps, with their names; none without a gap.

    `tested` has the cells of each test (`cells_of`). Each time the step with most pairs of cells
    that no test has is taken, and gets what engines add to a batch: other padding, layout,
    optional fields. The case that is made counts as a test.
    """
    if not steps or count <= 0:
        return
    filled = _bits([cells_of(step) for step in steps])
    masks = _bits(list(tested))
    missing = (masks.T @ masks) == 0
    left = list(range(len(steps)))
    while left and count > 0:
        lacks = ((filled @ missing) * filled).sum(axis=1)
        best = max(left, key=lambda step: lacks[step])
        if not lacks[best]:
            return
        left.remove(best)
        names, case = with_added_features(steps[best], f"{seed}/{len(left)}", problem)
        if names:
            own = _bits([cells_of(case)])
            missing &= (own.T @ own) == 0
            count -= 1
            yield f"like an engine step: {names}", case


def _bits(masks: Sequence[int]) -> np.ndarray:
    """Return (masks, cells) 1.0 for a cell that is filled, otherwise 0.0."""
    packed = b"".join(mask.to_bytes(_BYTES, "little") for mask in masks)
    bits = np.frombuffer(packed, np.uint8).reshape(len(masks), _BYTES)
    filled: np.ndarray = np.unpackbits(bits, axis=1, bitorder="little")[:, :_CELLS]
    # Products of floats are much faster than those of integers.
    return filled.astype(np.float32)
