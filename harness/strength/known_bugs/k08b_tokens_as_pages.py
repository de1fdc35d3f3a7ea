"""K8: a chunk's first token is taken for the column of its first page."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K8b",
    "make_local_attention_virtual_batches",
    "sgl-project/sglang#32902",
    ("off by one block", "wrong block of the same request", "stale entry read"),
    requests=1,
)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> CommonAttentionMetadata:
    """Looks the chunk up as in a table with one column a token; clipping hides how far it is."""
    md = common_attn_metadata
    made = reference.make_local_attention_virtual_batches(attn_chunk_size, md, block_size)
    last_column, offsets = md.block_table_tensor.shape[1] - 1, md.query_start_loc_cpu.tolist()
    columns = torch.arange(attn_chunk_size // block_size)
    rows = []
    for row, seq_len in enumerate(md.seq_lens_cpu.tolist()):
        query_len = offsets[row + 1] - offsets[row]
        last = max(0, -(-seq_len // attn_chunk_size) - 1)
        first = (seq_len - query_len) // attn_chunk_size if query_len else last
        for chunk in range(first, last + 1):
            picked = (chunk * attn_chunk_size + columns).clamp(max=last_column)
            rows.append(md.block_table_tensor[row, picked])
    return replace(made, block_table_tensor=torch.stack(rows)) if rows else made
