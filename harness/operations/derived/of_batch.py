"""Sizes, integers and arrays that a batch determines, by axis, meaning and role."""

from __future__ import annotations

import numpy as np

from attnproof.harness.cases.batches.tensors import BatchArrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.consumer.visible_keys import ExpectedTokens


def sizes_of(arrays: BatchArrays | None) -> dict[str, int]:
    """Return the size of each axis that a batch determines."""
    if arrays is None:
        return {}
    tokens = int(arrays.query_start_loc[-1])
    return {"R": arrays.num_reqs, "T": tokens, "W": arrays.block_table.shape[1]}


def amounts_of(arrays: BatchArrays) -> dict[str, int]:
    """Return the values of the integers of a batch, by meaning."""
    return {
        "requests": arrays.num_reqs,
        "tokens": int(arrays.query_start_loc[-1]),
        "block size": arrays.batch.block_size,
        "longest query": arrays.max_query_len,
        "longest sequence": arrays.max_seq_len,
    }


def of_role(arrays: BatchArrays, role: str, pattern: int) -> np.ndarray:
    """Return the values that a batch gives a role but those of a pool.

    `pattern` is that of stale places.
    """
    lengths = arrays.seq_lens.dtype
    if role == "query offsets":
        return arrays.query_start_loc
    if role == "query lengths":
        return np.diff(arrays.query_start_loc)  # in the dtype of the offsets
    if role == "computed lengths":
        return arrays.num_computed_tokens
    if role == "sequence lengths":
        return arrays.seq_lens
    if role == "block table":
        return arrays.block_table_with(STALE_PATTERNS[pattern])
    if role == "token starts":
        return arrays.query_start_loc[:-1]
    if role == "slots":
        return arrays.slot_mapping[: int(arrays.query_start_loc[-1])].astype(np.int64)
    tokens = ExpectedTokens(arrays)
    return (tokens.positions if role == "positions" else tokens.requests).astype(lengths)
