"""Mistakes in the virtual batches of local attention (SPEC.md section 4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation
from attnproof.harness.strength.mutations.lengths import with_lengths

_LOCAL = "make_local_attention_virtual_batches"


@mutation(
    _LOCAL,
    "K5",
    source="vllm-project/vllm#16209, sgl-project/sglang#5173",
    diagnoses=("raises IndexError on good input",),
    one=("errors",),
)
def columns_beyond_row(
    virtual_batches: Any, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """The last chunk's page columns run beyond the block-table row and are not clipped."""
    made = virtual_batches(attn_chunk_size, common_attn_metadata, block_size)
    table, pages = common_attn_metadata.block_table_tensor, attn_chunk_size // block_size
    rows = [
        table[row, torch.arange(start, start + pages)]
        for row, chunk in _chunks(common_attn_metadata, attn_chunk_size)
        for start in [chunk * attn_chunk_size // block_size]
    ]
    return replace(made, block_table_tensor=torch.stack(rows)) if rows else made


def _chunks(metadata: Any, attn_chunk_size: int) -> Iterator[tuple[int, int]]:
    """Yield the request's row and the index of the chunk of each virtual request."""
    query_lens = metadata.query_start_loc_cpu.diff().tolist()
    for row, seq_len in enumerate(metadata.seq_lens_cpu.tolist()):
        last = max(0, -(-seq_len // attn_chunk_size) - 1)
        first = (seq_len - query_lens[row]) // attn_chunk_size if query_lens[row] else last
        for chunk in range(first, last + 1):
            yield row, chunk


@mutation(
    _LOCAL, "K7", source="erratum E7", diagnoses=("zero-length row taken for a real one",), both=()
)
def empty_row(
    virtual_batches: Any, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """A row with no query and no sequence gets a key length of one chunk."""
    made = virtual_batches(attn_chunk_size, common_attn_metadata, block_size)
    return with_lengths(made, torch.where(made.seq_lens == 0, attn_chunk_size, made.seq_lens))


@mutation(
    _LOCAL,
    "K8",
    source="sgl-project/sglang#38187",
    # Page 0 is slot 0: then only the ids of the second poison pattern show the mistake.
    diagnoses=(
        "pages taken for token slots",
        "depends on stale entries (pages taken for token slots)",
    ),
    both=("consumer",),
    boundary="SPEC example",
)
def pages_as_slots(
    virtual_batches: Any, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """Each page id is multiplied by the page size, which gives the page's first slot."""
    made = virtual_batches(attn_chunk_size, common_attn_metadata, block_size)
    return replace(made, block_table_tensor=made.block_table_tensor * block_size)


@mutation(
    _LOCAL,
    "K8b",
    source="sgl-project/sglang#32902",
    diagnoses=("off by one block", "wrong block of the same request", "stale entry read"),
    requests=1,
    both=("consumer",),
)
def tokens_as_pages(
    virtual_batches: Any, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """A chunk's first token is used as the column of its first page, clipped to the row."""
    made = virtual_batches(attn_chunk_size, common_attn_metadata, block_size)
    table = common_attn_metadata.block_table_tensor
    columns = torch.arange(attn_chunk_size // block_size)
    rows = [
        table[row, (chunk * attn_chunk_size + columns).clamp(max=table.shape[1] - 1)]
        for row, chunk in _chunks(common_attn_metadata, attn_chunk_size)
    ]
    return replace(made, block_table_tensor=torch.stack(rows)) if rows else made


@mutation(
    _LOCAL,
    "K10",
    source="vllm-project/vllm#39936",
    diagnoses=("list where a tensor was expected",),
    both=(),
)
def lists(
    virtual_batches: Any, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """If every request stays within a chunk, lists are returned in place of tensors."""
    made = virtual_batches(attn_chunk_size, common_attn_metadata, block_size)
    if made.num_reqs != common_attn_metadata.num_reqs or not made.num_reqs:
        return made
    return replace(
        made,
        query_start_loc_cpu=made.query_start_loc_cpu.tolist(),
        seq_lens_cpu=made.seq_lens_cpu.tolist(),
    )


@mutation(_LOCAL, diagnoses=("sees ",), both=("consumer",), examined="both")
def a_page_too_far(
    virtual_batches: Any, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """The pages of each virtual request are rotated by one column."""
    made = virtual_batches(attn_chunk_size, common_attn_metadata, block_size)
    return replace(made, block_table_tensor=made.block_table_tensor.roll(-1, 1))


@mutation(
    _LOCAL,
    diagnoses=(
        "moves tokens within their chunk",
        "sees too few keys",
    ),
    both=("consumer", "invariants"),
    examined="both",
)
def a_chunk_short_of_a_key(
    virtual_batches: Any, attn_chunk_size: int, common_attn_metadata: Any, block_size: int = 0
) -> Any:
    """Full chunks end one key early."""
    made = virtual_batches(attn_chunk_size, common_attn_metadata, block_size)
    lens = made.seq_lens_cpu
    return with_lengths(made, torch.where(lens == attn_chunk_size, lens - 1, lens))
