"""Keys that query tokens attend to: per token, a range of one block-table row.

Two layouts of a batch are equivalent if every token sees the same set of cache slots,
whatever rows, offsets and lengths they use. The sets are compared by block ids first,
which is exact and costs one comparison per block, and slot by slot only if that
comparison is inconclusive.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.batches.tensors import BatchArrays

BEYOND = -(2**40)
"""Placeholder slot of a position beyond the last column of its row."""


class Mask(NamedTuple):
    """Positions of its sequence that a token may see."""

    causal: bool = True
    window: int = 0
    """Number of keys, the token's own included; 0 for no window."""
    chunk: int = 0
    """Positions per chunk, 0 for no chunks; keys of other chunks are hidden."""

    def first(self, positions: np.ndarray) -> np.ndarray:
        """Return the first position visible from each of `positions`."""
        first = np.zeros_like(positions)
        if self.window:
            first = np.maximum(first, positions - self.window + 1)
        if self.chunk:
            first = np.maximum(first, positions // self.chunk * self.chunk)
        return first


CAUSAL = Mask()
_MOST_KEYS = 1 << 24
"""Maximal number of keys that are listed: each takes some 60 bytes."""


class VisibleKeys(NamedTuple):
    """Keys that some tokens see: for each token positions [first, stop) of one row."""

    rows: np.ndarray
    """(n,) block-table row of each token."""
    first: np.ndarray
    """(n,) first visible position."""
    stop: np.ndarray
    """(n,) end of the visible positions, at least `first`."""
    table: np.ndarray
    """(R, W) int64 block ids."""
    block_size: int

    def slots(self, token: int) -> np.ndarray:
        """Return the cache slots of the keys that one token sees, by position."""
        positions = np.arange(self.first[token], self.stop[token])
        return self._slots(np.full(len(positions), self.rows[token]), positions)

    def total(self) -> int:
        """Return the number of keys that `keys` returns."""
        lengths = np.zeros(int(self.rows.max(initial=-1)) + 1, np.int64)
        np.maximum.at(lengths, self.rows, self.stop)
        return int(lengths.sum())

    def keys(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return all keys of the rows in use, up to the last visible one of each row.

        The rows in use are numbered from 0. The arrays hold the row number of each token,
        then the row number, position and slot of each key.
        """
        used, number = np.unique(self.rows, return_inverse=True)
        lengths = np.zeros(len(used), np.int64)
        np.maximum.at(lengths, number, self.stop)
        rows = np.repeat(np.arange(len(used)), lengths)
        positions = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return number, rows, positions, self._slots(used[rows], positions)

    def _slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        columns, places = np.divmod(positions, self.block_size)
        slots = np.full(len(positions), BEYOND)
        there = columns < self.table.shape[1]
        slots[there] = self.table[rows[there], columns[there]] * self.block_size + places[there]
        return slots


class ExpectedTokens:
    """Request, position and cache slot of every query token, computed from the batch."""

    def __init__(self, arrays: BatchArrays) -> None:
        self.batch = arrays.batch
        self.block_size = arrays.batch.block_size
        offsets = arrays.query_start_loc.astype(np.int64)
        lens = np.diff(offsets)
        self.starts = offsets
        self.requests = np.repeat(np.arange(len(lens)), lens)
        self.indices = np.arange(len(self.requests)) - np.repeat(offsets[:-1], lens)
        """Index of each token within its request's query."""
        self.computed = arrays.num_computed_tokens.astype(np.int64)
        self.positions = self.computed[self.requests] + self.indices
        self.table = arrays.block_table.astype(np.int64)
        self.live = np.unique(self.table[~arrays.stale_blocks])
        """Ids of all blocks that belong to a request, ascending."""
        columns, places = np.divmod(self.positions, self.block_size)
        self.slots = self.table[self.requests, columns] * self.block_size + places
        """Cache slot of each token's own key."""

    def visible_keys(self, tokens: np.ndarray, mask: Mask) -> VisibleKeys:
        """Return the keys that `tokens`, in ascending order, must see under the mask.

        Without a causal mask each token sees its request's keys up to the last of
        `tokens`.
        """
        rows, positions = self.requests[tokens], self.positions[tokens]
        stop = positions + 1
        if not mask.causal:
            # Keys of a later micro-batch are not in the cache yet.
            last = np.searchsorted(rows, rows, side="right") - 1
            stop = stop[last]
        return VisibleKeys(rows, mask.first(positions), stop, self.table, self.block_size)


def differing(required: VisibleKeys, seen: VisibleKeys) -> np.ndarray:
    """Return the indices of the tokens that do not see exactly the required keys.

    Returns none if there are very many keys in different blocks: they cannot be listed.
    """
    if required.block_size == seen.block_size and _same_blocks(required, seen):
        return np.zeros(0, np.int64)
    if max(required.total(), seen.total()) > _MOST_KEYS:
        return np.zeros(0, np.int64)
    counts = (required.stop - required.first) != (seen.stop - seen.first)
    return np.flatnonzero(counts | (_fingerprints(required) != _fingerprints(seen)))


def _same_blocks(required: VisibleKeys, seen: VisibleKeys) -> bool:
    """True if both see the same places of the same blocks in the same order."""
    shift = required.first - seen.first
    if (required.stop - seen.stop != shift).any() or (shift % required.block_size).any():
        return False
    some = required.stop > required.first
    if not some.any():
        return True
    kind = np.stack([required.rows[some], seen.rows[some], shift[some]])
    # Consecutive tokens with equal rows and shift see parts of one range: compare it once.
    starts = np.flatnonzero(np.r_[True, (kind[:, 1:] != kind[:, :-1]).any(0)])
    ours, theirs, shift = kind[:, starts]
    first = np.minimum.reduceat(required.first[some], starts) // required.block_size
    last = (np.maximum.reduceat(required.stop[some], starts) - 1) // required.block_size
    counts = last - first + 1
    run = np.repeat(np.arange(len(starts)), counts)
    columns = np.arange(len(run)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    others = columns - (shift // required.block_size)[run]
    if others.max() >= seen.table.shape[1]:
        return False
    return bool((required.table[ours[run], columns] == seen.table[theirs[run], others]).all())


def _fingerprints(visible: VisibleKeys) -> np.ndarray:
    """Return for each token the sum of its slots' hashes, (n,) uint64.

    Different sets have equal sums with a probability of 2**-64.
    """
    number, rows, _, slots = visible.keys()
    sums = np.zeros(len(slots) + 1, np.uint64)
    np.cumsum(scrambled(slots), out=sums[1:])
    begins = np.searchsorted(rows, number)
    fingerprints: np.ndarray = sums[begins + visible.stop] - sums[begins + visible.first]
    return fingerprints


def scrambled(numbers: np.ndarray) -> np.ndarray:
    """Hash each integer to 64 bits (the finaliser of splitmix64)."""
    bits = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = bits ^ (bits >> np.uint64(31))
    return mixed
