"""Count the free pages that a batch needs, and judge the slots that it gets.

The contract leaves free which of the first free pages a request gets (SPEC.md section 15).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import BatchArrays
from attnproof.harness.consumer.page_table import PageTable, written_violations
from attnproof.harness.model.call import Call, Facts, Free, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.violation import Violation

FIELD = "out_indices"
_CONTINUED = "slots in the prefix's last page"


@dataclass(frozen=True, kw_only=True)
class Demand(Facts):
    """New tokens of a batch whose prefixes are cached; int64 arrays."""

    prefix_lens: np.ndarray
    """(R,) cached tokens of each request."""
    seq_lens: np.ndarray
    """(R,) tokens of each request, the new ones included."""
    table: np.ndarray
    """(R, W) pages of the prefixes, stale behind them."""
    last_loc: np.ndarray
    """(R,) slot of the last cached token, -1 without one."""
    free_pages: np.ndarray
    """(F,) free pages."""

    @property
    def requests(self) -> np.ndarray:
        """(T,) request of each new token."""
        return np.repeat(np.arange(len(self.seq_lens)), self.seq_lens - self.prefix_lens)

    @property
    def positions(self) -> np.ndarray:
        """(T,) position of each new token."""
        lens = self.seq_lens - self.prefix_lens
        shift = self.prefix_lens - (np.cumsum(lens) - lens)
        positions: np.ndarray = np.arange(int(lens.sum())) + np.repeat(shift, lens)
        return positions

    @property
    def continued(self) -> np.ndarray:
        """(T,) True for tokens in the last page of their prefix."""
        ends = -(-self.prefix_lens // self.block_size) * self.block_size
        inside: np.ndarray = self.positions < ends[self.requests]
        return inside

    @property
    def new_pages(self) -> int:
        """Number of pages that the batch takes, the first of the free ones."""
        size = self.block_size
        return int((-(-self.seq_lens // size) - -(-self.prefix_lens // size)).sum())


def demand(arrays: BatchArrays, prefix_lens: np.ndarray, rows: np.ndarray, spare: int) -> Demand:
    """Return the demand of `rows` of a batch with `prefix_lens` (R,) of their tokens cached.

    The pages behind the prefixes are the free ones, then `spare` pages of no request.
    """
    size, table = arrays.batch.block_size, arrays.block_table[rows].astype(np.int64)
    seq_lens, prefixes = arrays.seq_lens[rows].astype(np.int64), prefix_lens.astype(np.int64)
    columns = np.arange(table.shape[1])
    before = -(-prefixes // size)
    new = (columns >= before[:, None]) & (columns < -(-seq_lens // size)[:, None])
    last = np.maximum(prefixes - 1, 0)
    place = np.full(len(rows), -1, dtype=np.int64)
    some = prefixes > 0
    at = table[some, last[some] // size] * size + last[some] % size
    place[some] = at
    used = set(arrays.block_table.ravel().tolist())
    others = islice((page for page in count() if page not in used), spare)
    return Demand(
        prefix_lens=prefixes,
        seq_lens=seq_lens,
        table=table,
        last_loc=place,
        free_pages=np.array([*table[new].tolist(), *others], dtype=np.int64),
        block_size=size,
    )


def written_twice(batch: Batch, *, decode: bool) -> str:
    """Return the problem of a batch in which another request holds a page that is written.

    Written are the pages of the query's tokens, or with `decode` of the last one.
    """
    counts = Counter(block for blocks in batch.blocks for block in blocks)
    rows = zip(batch.query_lens, batch.computed_lens, batch.blocks, strict=True)
    for row, (query, computed, blocks) in enumerate(rows):
        first = (computed + query - 1 if decode else computed) // batch.block_size
        for block in blocks[first:] if query else ():
            if counts[block] > 1:
                return f"batch.blocks[{row}]: {block} gets a new token and is listed twice"
    return ""


def slot_outputs(call: Call) -> Outputs:
    """Return the slots that leave no freedom, and all slots as free values."""
    out = call[FIELD]
    continued = torch.from_numpy(call.facts.continued).to(out.device)
    return {_CONTINUED: out[continued], FIELD: Free(slots=out.tolist())}


def slot_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that slots are unique, at their places, and in pages that the batch may take."""
    need: Demand = call.facts
    slots = np.array(outputs[FIELD].values["slots"], dtype=np.int64)
    size, continued = need.block_size, need.continued
    if (slots % size != need.positions % size).any():
        yield Violation(FIELD, "puts a token at another place of its page")
    if len(np.unique(slots)) != len(slots):
        yield Violation(FIELD, "hands out a slot twice")
    follows = need.last_loc[need.requests] + 1 + need.positions - need.prefix_lens[need.requests]
    if (slots != follows)[continued].any():
        yield Violation(FIELD, "does not continue the prefix's last page")
    pages, taken = slots[~continued] // size, need.free_pages[: need.new_pages]
    if not np.isin(pages, need.free_pages).all():
        yield Violation(FIELD, "takes a page that is not free")
    elif not np.isin(pages, taken).all():
        yield Violation(FIELD, "takes a page behind the first free ones")
    # A pair of request and column for each page, and the other way round.
    columns = (need.requests << 32 | need.positions // size)[~continued]
    pairs = len(set(zip(pages.tolist(), columns.tolist(), strict=True)))
    if not len(np.unique(pages)) == len(np.unique(columns)) == pairs:
        yield Violation(FIELD, "does not keep a page's tokens together")


def slots_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that the pages of the slots, as a page table, lead to every new token."""
    need: Demand = call.facts
    size, slots = need.block_size, np.array(outputs[FIELD].values["slots"], dtype=np.int64)
    counts = -(-need.seq_lens // size)
    table = np.full((len(counts), max(need.table.shape[1], counts.max(initial=0))), -1, np.int64)
    old = np.arange(need.table.shape[1]) < -(-need.prefix_lens // size)[:, None]
    table[:, : need.table.shape[1]][old] = need.table[old]
    first = ~need.continued & (need.positions % size == 0)
    table[need.requests[first], need.positions[first] // size] = slots[first] // size
    live = np.arange(table.shape[1]) < counts[:, None]
    indptr = np.append(0, np.cumsum(counts))
    pages = PageTable(indptr, table[live], need.seq_lens - (counts - 1) * size, size)
    new = need.requests, need.positions, slots
    yield from written_violations(pages, need.prefix_lens, *new, FIELD)
