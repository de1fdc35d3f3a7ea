"""Write the request of each query token."""

from __future__ import annotations

from .addresses import element, set_element
from .compiled import entry


@entry
def write_rows(
    rows: int,
    offsets: int,
    stride: int,
    wide: bool,
    out: int,
    out_stride: int,
    mapped: int,
    end: int,
) -> None:
    """Write the row of each of `mapped` tokens, int32, then 0 up to entry `end`.

    Offsets and `out` are an address and a stride in elements; offsets are int64 if `wide`.
    """
    token = 0
    for row in range(rows):
        for _ in range(element(offsets, (row + 1) * stride, wide) - token):
            set_element(out, token * out_stride, False, row)
            token += 1
    for padding in range(mapped, end):
        set_element(out, padding * out_stride, False, 0)
