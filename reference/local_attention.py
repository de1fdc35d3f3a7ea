"""Virtual batches for chunked local attention (SPEC.md section 4)."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch

from .definition.definition import operation
from .definition.roles import Int, Metadata, Object
from .interface import MetadataError
from .interface.fields import added_fields
from .shared import CommonAttentionMetadata

__all__ = [
    "make_local_attention_virtual_batches",
]


def _holds_blocks(operation: str, attn_chunk_size: int, block_size: int) -> None:
    """Require chunks of whole blocks."""
    if block_size < 1:
        raise MetadataError(operation, "block_size", block_size, "at least 1")
    if attn_chunk_size % block_size:
        expected = f"a multiple of block_size = {block_size}"
        raise MetadataError(operation, "attn_chunk_size", attn_chunk_size, expected)


def _has_columns(operation: str, common_attn_metadata: CommonAttentionMetadata) -> None:
    """Require a table that a chunk's columns can be taken of, and no shares of ranks."""
    md = common_attn_metadata
    if md.num_reqs and not md.block_table_tensor.shape[1]:
        raise MetadataError(operation, "block_table_tensor", "0 columns wide", "at least 1 column")
    if md.dcp_local_seq_lens is not None:
        expected = "None: no chunk's share is known"
        raise MetadataError(operation, "dcp_local_seq_lens", "set", expected)


@operation(requires=(_holds_blocks, _has_columns))
def make_local_attention_virtual_batches(
    attn_chunk_size: Annotated[int, Int(least=1)],
    common_attn_metadata: Annotated[
        CommonAttentionMetadata, Metadata(sequences=True, rows=True, logits=True)
    ],
    block_size: int = 0,
) -> Annotated[CommonAttentionMetadata, Object()]:
    """Turn each request into one virtual request per chunk that its query touches.

    Causal attention over the result equals attention over the batch with the mask
    `j <= i and i // C == j // C`, where C is `attn_chunk_size` in tokens. Offsets,
    lengths and ids keep their dtypes; the block table becomes (V, C / block_size). The
    result has the class of the batch. A field of a subclass with one entry a request gets
    one entry a virtual request; all other fields are kept. Raise MetadataError unless C
    is a positive multiple of `block_size`, and for `dcp_local_seq_lens`, which cannot be
    derived here. SPEC.md section 4.
    """
    md = common_attn_metadata
    chunk, columns = attn_chunk_size, attn_chunk_size // block_size
    last_column = md.block_table_tensor.shape[1] - 1
    offsets, seq_lens = md.query_start_loc_cpu.tolist(), md.seq_lens_cpu.tolist()
    block_table = md.block_table_tensor.cpu()

    starts, lengths, computed, rows, owners = [0], [], [], [], []
    for r in range(md.num_reqs):
        query_len = offsets[r + 1] - offsets[r]
        first_position = seq_lens[r] - query_len
        for k in _chunks(first_position, seq_lens[r], chunk):
            begin, end = k * chunk, min(seq_lens[r], (k + 1) * chunk)
            virtual_query_len = min(query_len, end - max(first_position, begin))
            starts.append(starts[-1] + virtual_query_len)
            lengths.append(end - begin)
            computed.append(end - begin - virtual_query_len)
            first_column = begin // block_size
            picked = [min(first_column + i, last_column) for i in range(columns)]
            rows.append(block_table[r, picked])
            owners.append(r)

    table = torch.stack(rows) if rows else block_table.new_empty((0, columns))
    query_lens = [end - start for start, end in pairwise(starts)]
    encoder = md.encoder_seq_lens
    return type(md)(
        query_start_loc=_like(md.query_start_loc, starts),
        query_start_loc_cpu=_like(md.query_start_loc_cpu, starts),
        seq_lens=_like(md.seq_lens, lengths),
        seq_lens_cpu=_like(md.seq_lens_cpu, lengths),
        num_computed_tokens_cpu=_like(md.num_computed_tokens_cpu, computed),
        num_reqs=len(lengths),
        num_actual_tokens=md.num_actual_tokens,
        max_query_len=max(query_lens, default=0),
        max_seq_len=max(lengths, default=0),
        block_table_tensor=table.to(md.block_table_tensor.device),
        slot_mapping=md.slot_mapping,
        causal=True,
        logits_indices_padded=md.logits_indices_padded,
        num_logits_indices=md.num_logits_indices,
        encoder_seq_lens=None if encoder is None else encoder[np.array(owners, dtype=np.intp)],
        **_added_for(md, owners),
    )


def _chunks(first_position: int, seq_len: int, chunk: int) -> range:
    """Return the chunks that [first_position, seq_len) touches; if empty, the last chunk."""
    if first_position < seq_len:
        return range(first_position // chunk, (seq_len - 1) // chunk + 1)
    last = max(0, -(-seq_len // chunk) - 1)
    return range(last, last + 1)


def _added_for(md: CommonAttentionMetadata, owners: list[int]) -> dict[str, Any]:
    """Return the fields that a subclass adds, those of requests repeated by virtual request."""
    added = {}
    for field, alignment in added_fields(type(md), CommonAttentionMetadata).items():
        value = getattr(md, field)
        if value is not None and alignment == "request":
            value = _rows(value, owners)
        elif value is not None and alignment == "row keys":
            value = {v: value[owner] for v, owner in enumerate(owners) if owner in value}
        added[field] = value
    return added


def _rows(value: Any, rows: list[int]) -> Any:
    """Return the given rows of a tensor, an array, a list or a tuple."""
    if isinstance(value, torch.Tensor):
        return value[torch.tensor(rows, dtype=torch.int64, device=value.device)]
    if isinstance(value, np.ndarray):
        return value[np.array(rows, dtype=np.intp)]
    return type(value)([value[row] for row in rows])


def _like(tensor: torch.Tensor, values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=tensor.dtype, device=tensor.device)
