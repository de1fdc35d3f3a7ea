"""Mistakes in splits and ranges of an engine step (SPEC.md section 11)."""

from __future__ import annotations

from copy import copy
from typing import Any

from attnproof.harness.strength.mutation import mutation
from attnproof.reference.interface import UBatchSlice


@mutation(
    "split_decodes_prefills_and_extends",
    diagnoses=("num_decodes", "num_decode_tokens", "zero-length", "off by one"),
    both=("consumer", "invariants"),
)
def argmax_of_no_long_query(split: Any, md: Any, decode_threshold: int = 1) -> Any:
    """All counts are 0 if the bound is above the threshold and no query is."""
    counts = split(md, decode_threshold)
    longest = int(md.query_start_loc_cpu.diff().max()) if md.num_reqs else 0
    return (
        counts if longest > decode_threshold or md.max_query_len <= decode_threshold else (0,) * 6
    )


@mutation(
    "maybe_create_ubatch_slices",
    diagnoses=("holds a request without a token in it",),
    both=("consumer", "invariants"),
)
def request_that_begins_at_the_end(create: Any, *args: Any, **kwargs: Any) -> Any:
    """A slice takes the request whose first token is the slice's end."""
    made = create(*args, **kwargs)
    if made[0] is None:
        return made
    return [[_with_next(one, slices[-1]) for one in slices] for slices in made]


def _with_next(ubatch: UBatchSlice, last: UBatchSlice) -> UBatchSlice:
    """Return the slice with one more request, unless it is the last slice."""
    rows = ubatch.request_slice
    if ubatch.token_slice.stop != last.token_slice.start:
        return ubatch
    return UBatchSlice(slice(rows.start, rows.stop + 1), ubatch.token_slice)


@mutation(
    "fill_mm_prefix_query_ranges",
    diagnoses=("result", "off by", "out", "stale entry read"),
    both=("invariants",),
)
def computed_tokens_forgotten(
    fill: Any, out: Any, ranges: Any, query_start_loc_cpu: Any, seq_lens_cpu: Any
) -> Any:
    """A chunk's tokens get the ranges at their place in the query, not in the prompt."""
    fill(copy(out), ranges, query_start_loc_cpu, seq_lens_cpu)  # malformed input raises here
    return fill(out, ranges, query_start_loc_cpu, query_start_loc_cpu.diff())


@mutation(
    "fill_mm_prefix_query_ranges",
    diagnoses=("out too small",),
    both=("invariants",),
    examples=90,
)
def rows_cleared_in_the_order_of_the_ranges(
    fill: Any, out: Any, ranges: Any, query_start_loc_cpu: Any, seq_lens_cpu: Any
) -> Any:
    """Tokens up to a row's ranges are cleared, also those of a later row that came before it."""
    written = fill(out, ranges, query_start_loc_cpu, seq_lens_cpu)
    if not written:
        return written
    right, offsets, cleared = out.copy(), query_start_loc_cpu.tolist(), 0
    for row in ranges:
        hits = [t for t in range(offsets[row], offsets[row + 1]) if right[t, 0] >= 0]
        if hits:
            out[cleared : hits[0]] = -1
            out[hits] = right[hits]
            cleared = hits[-1] + 1
    out[cleared:written] = -1
    return written
