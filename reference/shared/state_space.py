"""Metadata of state-space layers (SPEC.md section 17)."""

from __future__ import annotations

from typing import Annotated

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int, Object, Offsets
from ..interface.errors import MetadataError

__all__ = ["compute_mamba_prefill_checkpoints", "compute_varlen_chunk_metadata"]

_Chunks = Annotated[torch.Tensor, Array(shape=("?",), dtype=torch.int32)]
_LastChunks = Annotated[torch.Tensor, Array(shape=("R",), dtype=torch.int32)]


@operation(results=("cu_chunk_seqlens", "last_chunk_indices", "seq_idx_chunks"))
def compute_varlen_chunk_metadata(
    query_start_loc: Offsets, chunk_size: Annotated[int, Int(least=1)]
) -> tuple[_Chunks, _LastChunks, _Chunks]:
    """Cut packed tokens into chunks at the rows' ends and at multiples of `chunk_size`.

    `query_start_loc` (R+1,) int32 or int64 are the offsets of the rows, `chunk_size` counts
    tokens. Return (cu_chunk_seqlens, last_chunk_indices, seq_idx_chunks), int32 on the device of
    the offsets: the offsets of the N chunks (N+1,), the last chunk of each row (R,), -1 of a row
    without tokens, and the row of each chunk (N,). Raise MetadataError for offsets that do not
    rise from 0 and a chunk size below 1. SPEC.md section 17.
    """
    starts, rows, last = [0], [], []
    for row, end in enumerate(query_start_loc.tolist()[1:]):
        while starts[-1] < end:
            starts.append(min(end, (starts[-1] // chunk_size + 1) * chunk_size))
            rows.append(row)
        last.append(len(rows) - 1 if row in rows[-1:] else -1)
    cut = (torch.tensor(values, dtype=torch.int32) for values in (starts, last, rows))
    chunks, last_chunks, rows_of_chunks = (each.to(query_start_loc.device) for each in cut)
    return chunks, last_chunks, rows_of_chunks


def _are_rows(operation: str, seq_lens: list[int], query_lens: list[int]) -> None:
    """Require the queries of as many rows, each within its sequence."""
    if len(query_lens) != len(seq_lens):
        got, expected = f"of length {len(query_lens)}", f"of length {len(seq_lens)}"
        raise MetadataError(operation, "query_lens", got, expected)
    for query_len, seq_len in zip(query_lens, seq_lens, strict=True):
        if not 0 <= query_len <= seq_len:
            raise MetadataError(operation, "query_lens", query_len, f"from 0 to {seq_len}")


_Tokens = Annotated[int, Int(least=1)]


@operation(requires=(_are_rows,), results=("offsets", "cols"))
def compute_mamba_prefill_checkpoints(
    seq_lens: Annotated[list[int], Object()],
    query_lens: Annotated[list[int], Object()],
    hash_block_size: _Tokens,
    mamba_block_size: _Tokens,
    checkpoint_alignment: _Tokens | None,
    drop_eagle_block: bool,
    cache_hit_alignment_tokens: _Tokens,
    num_hash_lookahead_tokens: int = 0,
) -> tuple[Annotated[list[int], Object()], Annotated[list[int], Object()]]:
    """Return where each prefill exports a state that a later request may hit.

    All arguments count tokens; the lists have an entry for each row. Return (offsets, cols): the
    tokens of the query before the checkpoint, and the column of the row's table that gets the
    state there; 0 and -1 for a row without a checkpoint, and for all if `checkpoint_alignment`
    is None. Raise MetadataError for lists of different lengths, a query longer than its sequence
    and sizes out of range. SPEC.md section 17.
    """
    offsets, cols = [], []
    for seq_len, query_len in zip(seq_lens, query_lens, strict=True):
        computed = seq_len - query_len
        # A hit of a draft drops a block, which is the lookahead's room too.
        behind = 0 if drop_eagle_block else max(1, num_hash_lookahead_tokens)
        hits = (seq_len - behind) // cache_hit_alignment_tokens - drop_eagle_block
        position = max(0, hits * cache_hit_alignment_tokens)
        col = -(-seq_len // mamba_block_size) - 2
        exported = (
            checkpoint_alignment is not None
            and computed % hash_block_size == 0
            and col > (computed - 1) // mamba_block_size
            and computed + hash_block_size <= position < seq_len
            and (position - computed) % checkpoint_alignment == 0
        )
        offsets.append(position - computed if exported else 0)
        cols.append(col if exported else -1)
    return offsets, cols
