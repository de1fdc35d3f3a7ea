"""Divide sequences between the ranks of context parallelism, in loops that take addresses.

Integers at an address are int64 if its `wide` flag is set, int32 otherwise, and dense.
"""

from __future__ import annotations

from .addresses import element, int32_at, int64_at
from .compiled import entry


@entry
def fill_shares(
    seq_lens: int,
    wide: bool,
    num_reqs: int,
    size: int,
    rank: int,
    interleave: int,
    out: int,
    length: int,
) -> None:
    """Write the positions that the rank owns of each sequence, then 0, to `length` int32."""
    shares, span = int32_at(out, length), size * interleave
    for r in range(num_reqs):
        seq_len = element(seq_lens, r, wide)
        turns = seq_len // span
        rest = seq_len - turns * span - rank * interleave
        shares[r] = turns * interleave + min(max(rest, 0), interleave)
    for r in range(num_reqs, length):
        shares[r] = 0


@entry
def find_runs(seq_lens: int, wide: bool, num_reqs: int, workspace: int, ends: int) -> int:
    """Write the end of each run to `ends`, at most `num_reqs` int64; return their number."""
    num_runs, total = 0, 0
    stops = int64_at(ends, num_reqs)
    for r in range(num_reqs):
        seq_len = element(seq_lens, r, wide)
        if total + seq_len > workspace:
            stops[num_runs] = r
            num_runs += 1
            total = 0
        total += seq_len
    if num_reqs > 0:
        stops[num_runs] = num_reqs
        num_runs += 1
    return num_runs
