"""Hand out slots for new tokens.

Tensors are given as address, stride in elements and `wide`: True for int64, False for int32.
"""

from __future__ import annotations

from .addresses import element, int64_at
from .compiled import entry


@entry
def extend(
    rows: int,
    prefixes: int,
    prefixes_stride: int,
    wide_prefixes: bool,
    lengths: int,
    lengths_stride: int,
    wide_lengths: bool,
    last_slots: int,
    last_stride: int,
    wide_last: bool,
    free: int,
    free_stride: int,
    wide_free: bool,
    page_size: int,
    out: int,
    out_stride: int,
) -> None:
    """Write the slots of positions [prefix, length) of each request to `out`, int64."""
    i = 0
    page = 0
    for r in range(rows):
        position = element(prefixes, r * prefixes_stride, wide_prefixes)
        end = element(lengths, r * lengths_stride, wide_lengths)
        slot = element(last_slots, r * last_stride, wide_last) + 1
        while position < end:
            place = position % page_size
            if place == 0:
                slot = element(free, page * free_stride, wide_free) * page_size
                page += 1
            run = min(page_size - place, end - position)
            for t in range(run):
                at = (i + t) * out_stride
                int64_at(out, at + 1)[at] = slot + t
            i += run
            position += run


@entry
def decode(
    rows: int,
    lengths: int,
    lengths_stride: int,
    wide_lengths: bool,
    last_slots: int,
    last_stride: int,
    wide_last: bool,
    free: int,
    free_stride: int,
    wide_free: bool,
    page_size: int,
    out: int,
    out_stride: int,
) -> None:
    """Write the slot of the last token of each request to `out`, int64."""
    page = 0
    for r in range(rows):
        if (element(lengths, r * lengths_stride, wide_lengths) - 1) % page_size:
            slot = element(last_slots, r * last_stride, wide_last) + 1
        else:
            slot = element(free, page * free_stride, wide_free) * page_size
            page += 1
        at = r * out_stride
        int64_at(out, at + 1)[at] = slot
