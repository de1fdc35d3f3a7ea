"""A pool of requests' slots, `req_to_token` of SGLang, made of a batch (SPEC.md section 15)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import size_problem

MOST_SLOT = 2**31 - 1
"""Highest slot that an int32 table can hold."""


class Pool(NamedTuple):
    """The rows of the batch's requests in a pool that has more of them."""

    table: np.ndarray
    """(P, W) slot of each position, stale behind a sequence and in the rows of no request."""
    rows: np.ndarray
    """(R,) row of each request, descending; int64."""


def token_pool(batch: Batch, pattern: int) -> Pool:
    """Return the pool with the slot of each position; int64 if a slot needs it, else int32."""
    made, size = batch_arrays(batch, pattern), batch.block_size
    lengths = made.seq_lens.astype(np.int64)
    width = int(lengths.max(initial=0)) + 2
    requests = np.repeat(np.arange(made.num_reqs), lengths)
    positions = np.arange(len(requests)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns, places = np.divmod(positions, size)
    slots = made.block_table[requests, columns].astype(np.int64) * size + places
    wide = batch.dtype == "int64" or slots.max(initial=0) > MOST_SLOT
    pool = _empty(made.num_reqs, width, pattern, np.int64 if wide else np.int32)
    pool.table[pool.rows[requests], positions] = slots
    return pool


def page_pool(batch: Batch, pattern: int) -> Pool:
    """Return the pool with a page for each `block_size` positions, int32."""
    made = batch_arrays(batch, pattern)
    table = made.block_table_with(STALE_PATTERNS[pattern])
    pool = _empty(made.num_reqs, table.shape[1], pattern, np.int32)
    pool.table[pool.rows] = table
    return pool


def _empty(rows: int, width: int, pattern: int, dtype: type) -> Pool:
    table: np.ndarray = np.full((2 * rows + 1, width), STALE_PATTERNS[pattern], dtype=dtype)
    return Pool(table, 2 * np.arange(rows, dtype=np.int64)[::-1] + 1)


def needs_wide_pool(case: Case) -> str:
    """Return why no engine makes the pool of the case's batch, "" if one may."""
    batch = batch_of(case)
    highest = max((max(blocks, default=0) for blocks in batch.blocks), default=0)
    fits = (highest + 1) * batch.block_size - 1 <= MOST_SLOT
    return "" if fits else "req_to_token of an engine is int32, and its slots fit"


def pool_problem(case: Case) -> str:
    """Return why the pool of the case's batch is too large for the memory, "" if it is not."""
    batch = batch_of(case)
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    rows = 2 * (batch.num_requests + batch.padded_requests) + 1
    return size_problem("batch", rows * (max(lengths, default=0) + 2))
