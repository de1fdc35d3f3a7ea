"""A pool of requests' slots, `req_to_token` of SGLang, made of a batch (SPEC.md section 15)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.batches.request_rows import pattern_of, request_rows
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
    """(R,) row of each request (`request_rows`), of padded rows that of the first one; int64."""


def token_pool(batch: Batch, pattern: int, *, distinct: bool = False) -> Pool:
    """Return the pool with the slot of each position; int64 if a slot needs it, else int32.

    With `distinct`, padded rows have rows of their own.
    """
    arrays, size = batch_arrays(batch, pattern), batch.block_size
    lengths = arrays.seq_lens.astype(np.int64)
    # The longest sequence of every second batch fills its row.
    width = max(1, int(lengths.max(initial=0))) + 2 * (batch.num_requests % 2)
    requests = np.repeat(np.arange(arrays.num_reqs), lengths)
    positions = np.arange(len(requests)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns, places = np.divmod(positions, size)
    slots = arrays.block_table[requests, columns].astype(np.int64) * size + places
    wide = batch.dtype == "int64" or slots.max(initial=0) > MOST_SLOT
    pool = _empty(batch, width, pattern, np.int64 if wide else np.int32)
    pool.table[pool.rows[requests], positions] = slots
    return pool._replace(rows=_every_row(batch)) if distinct else pool


def page_pool(batch: Batch, pattern: int) -> Pool:
    """Return the pool with a page for each `block_size` positions, int32."""
    arrays = batch_arrays(batch, pattern)
    table = arrays.block_table_with(STALE_PATTERNS[pattern])
    pool = _empty(batch, table.shape[1], pattern, np.int32)
    pool.table[pool.rows[: batch.num_requests]] = table[: batch.num_requests]
    return pool


def _empty(batch: Batch, width: int, pattern: int, dtype: type) -> Pool:
    rows = batch.num_requests + batch.padded_requests
    table: np.ndarray = np.full((_room(rows), width), STALE_PATTERNS[pattern], dtype=dtype)
    of_requests = _every_row(batch)
    if batch.num_requests:
        of_requests[batch.num_requests :] = of_requests[0]
    return Pool(table, of_requests)


def _every_row(batch: Batch) -> np.ndarray:
    """Return a row for each request and padded row."""
    count = batch.num_requests + batch.padded_requests
    return request_rows(count, _room(count), pattern_of(batch))


def _room(rows: int) -> int:
    """Return the rows of a pool with that many requests."""
    return 2 * rows + 1


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
    rows = _room(batch.num_requests + batch.padded_requests)
    return size_problem("batch", rows * (max(lengths, default=0) + 2))
