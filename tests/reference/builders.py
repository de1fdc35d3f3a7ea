"""Build metadata from plain lists, for tests of SPEC.md's words."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.reference import CommonAttentionMetadata


def make_metadata(
    query_lens: list[int],
    seq_lens: list[int],
    block_table: list[list[int]] | None = None,
    /,
    *,
    num_actual_tokens: int | None = None,
    dtype: torch.dtype = torch.int32,
    **fields: Any,
) -> CommonAttentionMetadata:
    """Return a batch on the CPU, with one block-table column of zeros by default."""
    offsets = torch.tensor([0, *query_lens]).cumsum(0).to(dtype)
    lengths = torch.tensor(seq_lens, dtype=dtype)
    tokens = sum(query_lens) if num_actual_tokens is None else num_actual_tokens
    rows = block_table if block_table is not None else [[0]] * len(query_lens)
    values: dict[str, Any] = {
        "query_start_loc": offsets,
        "query_start_loc_cpu": offsets.clone(),
        "seq_lens": lengths,
        "seq_lens_cpu": lengths.clone(),
        "num_computed_tokens_cpu": (lengths - offsets.diff()).to(dtype),
        "num_reqs": len(query_lens),
        "num_actual_tokens": tokens,
        "max_query_len": max(query_lens, default=0),
        "max_seq_len": max(seq_lens, default=0),
        "block_table_tensor": torch.tensor(rows, dtype=torch.int32).reshape(
            len(rows), len(rows[0]) if rows else 0
        ),
        "slot_mapping": torch.arange(tokens),
    }
    return CommonAttentionMetadata(**values | fields)
