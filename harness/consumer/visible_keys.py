"""What each query token sees: a range of its block-table row, as a set of cache slots.

Two layouts of a batch are the same if each token's set is, whatever rows, offsets and
lengths they are made of. Sets are compared by block ids, which is exact and costs a
comparison a block; only where that does not settle it are they compared slot by slot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.batches.tensors import BatchArrays

BEYOND = -(2**40)
"""Stands for the slot of a position behind the last column of its row."""


class Mask(NamedTuple):
    """Which positions of its sequence a token may see."""

    causal: bool = True
    window: int = 0
    """Keys, the token's own among them; 0 for no window."""
    chunk: int = 0
    """Positions of a chunk, beyond which nothing is seen; 0 for no chunks."""

    def first(self, positions: np.ndarray) -> np.ndarray:
        """The first position that a token at each of `positions` sees."""
        first = np.zeros_like(positions)
        if self.window:
            first = np.maximum(first, positions - self.window + 1)
        if self.chunk:
            first = np.maximum(first, positions // self.chunk * self.chunk)
        return first


CAUSAL = Mask()


class VisibleKeys(NamedTuple):
    """What some tokens see: positions [first, stop) of a row of the block table each."""

    rows: np.ndarray
    first: np.ndarray
    stop: np.ndarray
    """At least `first`."""
    table: np.ndarray
    """(R, W) int64 block ids"""
    block_size: int

    def slots(self, token: int) -> np.ndarray:
        """Cache slots of the keys that one token sees, in order."""
        positions = np.arange(self.first[token], self.stop[token])
        return self._slots(np.full(len(positions), self.rows[token]), positions)

    def keys(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All keys of the rows in use up to the last that is seen.

        Returned are the number of each token's row among these, and of each key its
        row's number, its position and its slot.
        """
        used, number = np.unique(self.rows, return_inverse=True)
        lengths = np.zeros(len(used), np.int64)
        np.maximum.at(lengths, number, self.stop)
        rows = np.repeat(np.arange(len(used)), lengths)
        positions = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return number, rows, positions, self._slots(used[rows], positions)

    def _slots(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        columns, places = np.divmod(positions, self.block_size)
        found = np.full(len(positions), BEYOND)
        there = columns < self.table.shape[1]
        found[there] = self.table[rows[there], columns[there]] * self.block_size + places[there]
        return found


class ExpectedTokens:
    """The batch in numbers, token by token: whose it is, at which position, in which slot."""

    def __init__(self, made: BatchArrays) -> None:
        self.batch = made.batch
        self.block_size = made.batch.block_size
        offsets = made.query_start_loc.astype(np.int64)
        lens = np.diff(offsets)
        self.starts = offsets
        self.requests = np.repeat(np.arange(len(lens)), lens)
        self.indices = np.arange(len(self.requests)) - np.repeat(offsets[:-1], lens)
        """Number of each token within its request's query."""
        self.computed = made.num_computed_tokens.astype(np.int64)
        self.positions = self.computed[self.requests] + self.indices
        self.table = made.block_table.astype(np.int64)
        self.live = np.unique(self.table[~made.stale_blocks])
        """Ids of all blocks that some request has."""
        columns, places = np.divmod(self.positions, self.block_size)
        self.slots = self.table[self.requests, columns] * self.block_size + places
        """Where each token's own key lies."""

    def visible_keys(self, tokens: np.ndarray, mask: Mask) -> VisibleKeys:
        """What these tokens, in ascending order, must see.

        Without a causal mask all that their request has when the last of them is there:
        what a later micro-batch computes is not in the cache yet.
        """
        rows, positions = self.requests[tokens], self.positions[tokens]
        stop = positions + 1
        if not mask.causal:
            last = np.searchsorted(rows, rows, side="right") - 1
            stop = stop[last]
        return VisibleKeys(rows, mask.first(positions), stop, self.table, self.block_size)


def differing(must: VisibleKeys, seen: VisibleKeys) -> np.ndarray:
    """The tokens, in order, that do not see exactly what they must."""
    if _same_blocks(must, seen):
        return np.zeros(0, np.int64)
    counts = (must.stop - must.first) != (seen.stop - seen.first)
    return np.flatnonzero(counts | (_fingerprints(must) != _fingerprints(seen)))


def _same_blocks(must: VisibleKeys, seen: VisibleKeys) -> bool:
    """Whether both see the same positions of the same blocks in the same order."""
    shift = must.first - seen.first
    if (must.stop - seen.stop != shift).any() or (shift % must.block_size).any():
        return False
    some = must.stop > must.first
    if not some.any():
        return True
    kind = np.stack([must.rows[some], seen.rows[some], shift[some]])
    # Runs of tokens that share rows and shift see parts of one range.
    starts = np.flatnonzero(np.r_[True, (kind[:, 1:] != kind[:, :-1]).any(0)])
    ours, theirs, shift = kind[:, starts]
    first = np.minimum.reduceat(must.first[some], starts) // must.block_size
    last = (np.maximum.reduceat(must.stop[some], starts) - 1) // must.block_size
    counts = last - first + 1
    run = np.repeat(np.arange(len(starts)), counts)
    columns = np.arange(len(run)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
    others = columns - (shift // must.block_size)[run]
    if others.max() >= seen.table.shape[1]:
        return False
    return bool((must.table[ours[run], columns] == seen.table[theirs[run], others]).all())


def _fingerprints(visible: VisibleKeys) -> np.ndarray:
    """A number for each token's set of slots: the sum of their hashes.

    Two sets that differ have the same one with a probability of 2**-64.
    """
    number, rows, _, slots = visible.keys()
    sums = np.zeros(len(slots) + 1, np.uint64)
    np.cumsum(scrambled(slots), out=sums[1:])
    begins = np.searchsorted(rows, number)
    fingerprints: np.ndarray = sums[begins + visible.stop] - sums[begins + visible.first]
    return fingerprints


def scrambled(numbers: np.ndarray) -> np.ndarray:
    """64 bits that look random, the same for equal integers (the finaliser of splitmix64)."""
    bits = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = bits ^ (bits >> np.uint64(31))
    return mixed
