"""Key offsets of xformers' mask."""

from __future__ import annotations

from .addresses import int32_at
from .compiled import entry


@entry
def fill_multiples(count: int, step: int, out: int) -> None:
    """Write 0, step, 2 * step, ...: `count` int32 at address `out`."""
    multiples = int32_at(out, count)
    for i in range(count):
        multiples[i] = i * step
