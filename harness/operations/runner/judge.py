"""Judge block tables and slots of a step by the blocks that each request owns.

Nothing here uses the reference: blocks and positions are those of the case.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from attnproof.harness.model.violation import Violation


@dataclass(frozen=True, kw_only=True)
class Group:
    """Blocks of a step's rows in one KV-cache group."""

    block_size: int
    columns: int
    enabled: bool
    """True if the group's tokens have slots."""
    ranks: int
    """Ranks that share a sequence, 1 if the group is not sharded."""
    rank: int
    turn: int
    """Positions that a rank owns in turn."""
    blocks: Sequence[Sequence[int]]
    """Live blocks of each row; none in a dummy row."""
    had: Sequence[frozenset[int]] = ()
    """Blocks that each row's request had before; none by default."""

    def may_name(self, row: int) -> frozenset[int]:
        """Return what may stand behind the live blocks of a row."""
        had = self.had[row] if self.had else frozenset[int]()
        return had | {0, *self.blocks[row]}


def live_part(table: torch.Tensor, group: Group) -> torch.Tensor:
    """Return the table with 0 behind the live blocks, which is don't care."""
    live = table.clone()
    for row, blocks in enumerate(group.blocks):
        live[row, len(blocks) :] = 0
    return live


def table_violations(field: str, rows: list[list[int]], group: Group) -> Iterator[Violation]:
    """Yield the mistakes of a gathered table, all columns of its rows."""
    if len(rows) < len(group.blocks) or any(len(entries) != group.columns for entries in rows):
        yield Violation(field, "has not the rows and columns of the step")
        return
    for row, ids in enumerate(rows):
        if row >= len(group.blocks):
            if any(ids):
                yield Violation(field, "names a block in a padded row", f"row {row}")
                return
            continue
        live = list(group.blocks[row])
        if ids[: len(live)] != live:
            yield Violation(field, "reads a block that is not the request's", f"row {row}")
            return
        allowed = group.may_name(row)
        for column in range(len(live), group.columns):
            if ids[column] not in allowed:
                detail = f"row {row} has {len(live)} blocks, and {ids[column]} in column {column}"
                yield Violation(field, "names another request's block behind the live ones", detail)
                return


def expected_slots(group: Group, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the slot of each token, int64: the place on this rank that its position has."""
    slots = np.full(len(rows), -1, dtype=np.int64)
    if not group.enabled:
        return slots
    # The local positions of a rank are the positions that it owns, in their order.
    turn, ranks = group.turn, group.ranks
    owned = (
        np.ones(len(rows), dtype=bool) if ranks == 1 else positions // turn % ranks == group.rank
    )
    before = positions // (turn * ranks) * turn + positions % turn if ranks > 1 else positions
    for token in np.flatnonzero(owned):
        column, offset = divmod(int(before[token]), group.block_size)
        blocks = group.blocks[rows[token]]
        if column < len(blocks):
            slots[token] = blocks[column] * group.block_size + offset
    return slots


def slot_violations(
    field: str, slot_mapping: torch.Tensor, group: Group, rows: np.ndarray, positions: np.ndarray
) -> Iterator[Violation]:
    """Yield the first mistake of one group's slots, and an entry behind the tokens."""
    slots = slot_mapping.cpu().numpy()
    if len(slots) < len(rows):
        yield Violation(field, "has fewer entries than there are tokens")
        return
    if (slots[len(rows) :] != -1).any():
        yield Violation(field, "gives a slot to an entry behind the last token")
    right = expected_slots(group, rows, positions)
    wrong = np.flatnonzero(slots[: len(rows)] != right)
    if not len(wrong):
        return
    token = int(wrong[0])
    slot, row = int(slots[token]), int(rows[token])
    detail = f"token {token}, position {positions[token]} of row {row}: slot {slot}"
    if right[token] == -1:
        text = "gives a slot to a token that must have none"
    elif slot == -1:
        text = "gives no slot to a token that this rank owns"
    elif slot // group.block_size not in group.blocks[row]:
        text = "writes into a block that the request does not own"
    else:
        text = "writes a token where it is not read"
    yield Violation(field, text, detail)
