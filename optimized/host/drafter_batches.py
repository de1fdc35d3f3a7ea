"""Compute the rows and tokens of a drafter's batch.

Tensors are passed as address, `wide` flag (int64 if set, otherwise int32) and stride in
elements; those without a stride are dense.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at, set_element
from .compiled import entry


@entry
def keep_rows(
    rows: int,
    offsets: int,
    wide_offsets: bool,
    offset_stride: int,
    lengths: int,
    wide_lengths: bool,
    length_stride: int,
    rejected: int,
    starts: int,
    out_lengths: int,
) -> tuple[int, int, int]:
    """Write offsets and lengths, of the dtypes given, without `rejected` (int64) tokens a row.

    Return the number of tokens, the longest query and the longest sequence.
    """
    counts = int64_at(rejected, rows)
    total = longest_query = longest = first = 0
    set_element(starts, 0, wide_offsets, 0)
    for r in range(rows):
        end = element(offsets, (r + 1) * offset_stride, wide_offsets)
        query_len = end - first - counts[r]
        length = element(lengths, r * length_stride, wide_lengths) - counts[r]
        first = end
        total += query_len
        longest_query = max(longest_query, query_len)
        longest = max(longest, length)
        set_element(starts, r + 1, wide_offsets, total)
        set_element(out_lengths, r, wide_lengths, length)
    return total, longest_query, longest


@entry
def keep_tokens(
    rows: int,
    offsets: int,
    wide_offsets: bool,
    offset_stride: int,
    starts: int,
    slots: int,
    slot_stride: int,
    indices: int,
    wide_indices: bool,
    out_slots: int,
) -> None:
    """Write the index and the slot of each token that is kept.

    `starts` are the offsets of the kept tokens, of the dtype of `offsets`.
    """
    for r in range(rows):
        first = element(offsets, r * offset_stride, wide_offsets)
        start = element(starts, r, wide_offsets)
        for t in range(start, element(starts, r + 1, wide_offsets)):
            token = first + t - start
            set_element(indices, t, wide_indices, token)
            slot = element(slots, token * slot_stride, True)
            set_element(out_slots, t, True, slot)


@entry
def count_rejected(
    rows: int,
    ends: int,
    wide_ends: bool,
    end_stride: int,
    counts: int,
    wide_counts: bool,
    count_stride: int,
    offsets: int,
    wide_offsets: bool,
    offset_stride: int,
    to_sample: int,
    rejected: int,
) -> None:
    """Write each row's last kept token and its number of rejected tokens, int32."""
    sample, lost = int32_at(to_sample, rows), int32_at(rejected, rows)
    before = 0
    for r in range(rows):
        end = element(ends, r * end_stride, wide_ends)
        count = 0
        if end > before:
            count = end - before + 1 - element(counts, r * count_stride, wide_counts)
        before = end
        lost[r] = count
        sample[r] = element(offsets, (r + 1) * offset_stride, wide_offsets) - 1 - count


@entry
def query_bounds(rows: int, offsets: int, wide: bool, stride: int) -> tuple[int, int]:
    """Return the number of tokens and the longest of the queries, 0 without rows."""
    longest, first = 0, 0
    for r in range(rows):
        end = element(offsets, (r + 1) * stride, wide)
        longest = max(longest, end - first)
        first = end
    return first, longest
