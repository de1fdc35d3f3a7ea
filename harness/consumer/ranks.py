"""Check the slots of each rank of context parallelism the way its kernels use them.

A rank keeps the positions that it owns densely, in order: its i-th own position is at entry
i of the blocks in its row. The expected slot of a position is found by counting the rank's
earlier positions, without the formula that the operations use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.consumer.diagnosis import block_owner, token_name
from attnproof.harness.consumer.visible_keys import ExpectedTokens
from attnproof.harness.model.violation import Violation


class Rank(NamedTuple):
    """One rank of context parallelism."""

    size: int
    """Number of ranks."""
    rank: int
    interleave: int
    """Positions that a rank owns in turn."""

    def owns(self, positions: np.ndarray) -> np.ndarray:
        """Return for each position whether this rank owns it."""
        owned: np.ndarray = positions // self.interleave % self.size == self.rank
        return owned

    def count_before(self, positions: np.ndarray) -> np.ndarray:
        """Return for each position how many earlier ones this rank owns."""
        turns, rest = np.divmod(positions, self.size * self.interleave)
        in_last = np.clip(rest - self.rank * self.interleave, 0, self.interleave)
        before: np.ndarray = turns * self.interleave + in_last
        return before


def rank_slot_violations(
    expected: ExpectedTokens,
    rank: Rank,
    slots: torch.Tensor,
    field: str,
    *,
    columns: int,
    unwritten: np.ndarray,
) -> Iterator[Violation]:
    """Yield a violation for the first token that the rank does not write where it reads it.

    `slots` has one entry for each token, then entries of padding, which must be -1. The block
    table has `columns`; tokens marked in `unwritten` (T,) bool must have no slot.
    """
    got, right = int64_array(slots), rank_slots(expected, rank, columns)
    right[unwritten] = -1
    if len(got) < len(right):
        detail = f"{token_name(expected, len(got))} has no entry"
        yield Violation(field, "has too few entries", detail)
        return
    wrong = np.flatnonzero(got[: len(right)] != right)
    if len(wrong):
        token = int(wrong[0])
        yield Violation(field, *_mistake(expected, rank, token, int(got[token]), right[token]))
        return
    written = np.flatnonzero(got[len(right) :] != -1)
    if len(written):
        entry = len(right) + int(written[0])
        detail = f"entry {entry} is padding and has slot {got[entry]}"
        yield Violation(field, "writes padding to the cache", detail)


def rank_slots(expected: ExpectedTokens, rank: Rank, columns: int) -> np.ndarray:
    """Return (T,) int64, the slot at which the rank reads each token's key.

    -1 for tokens of other ranks and for those beyond the `columns` of the block table.
    """
    slots = np.full(len(expected.positions), -1, np.int64)
    column, place = np.divmod(rank.count_before(expected.positions), expected.block_size)
    mine = rank.owns(expected.positions) & (column < columns)
    blocks = expected.table[expected.requests[mine], column[mine]]
    slots[mine] = blocks * expected.block_size + place[mine]
    return slots


def _mistake(
    expected: ExpectedTokens, rank: Rank, token: int, slot: int, place: int
) -> tuple[str, str]:
    """Return kind and detail of a token that a rank writes to `slot` and reads from `place`."""
    name, owned = token_name(expected, token), bool(rank.owns(expected.positions)[token])
    where = f"on rank {rank.rank} of {rank.size}"
    if place == -1:
        kind = "writes a token that has no slot" if owned else "writes another rank's token"
        return kind, f"{name} is written to slot {slot} {where}"
    if slot == -1:
        return "leaves a token unwritten", f"{name} is not written {where}, read at slot {place}"
    detail = f"{name} is written to slot {slot} {where} and read at slot {place}"
    block, request = slot // expected.block_size, int(expected.requests[token])
    if block in expected.batch.blocks[request]:
        return "writes a token where its rank does not read it", detail
    if block_owner(expected, block) is None:
        return "writes into a block that no request has", f"{detail}, in block {block}"
    return "overwrites another request's cache", f"{detail}, in block {block}"
