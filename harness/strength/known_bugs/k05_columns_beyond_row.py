"""K5: the last chunk's page columns run beyond the block-table row and are not clipped."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K5",
    "make_local_attention_virtual_batches",
    "vllm-project/vllm#16209, sgl-project/sglang#5173",
    ("raises IndexError on good input",),
)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> CommonAttentionMetadata:
    """Gathers `chunk / block` columns of each chunk, whether the row has them or not."""
    made = reference.make_local_attention_virtual_batches(
        attn_chunk_size, common_attn_metadata, block_size
    )
    table = common_attn_metadata.block_table_tensor
    offsets = common_attn_metadata.query_start_loc_cpu.tolist()
    rows = []
    for row, seq_len in enumerate(common_attn_metadata.seq_lens_cpu.tolist()):
        query_len = offsets[row + 1] - offsets[row]
        last = max(0, -(-seq_len // attn_chunk_size) - 1)
        first = (seq_len - query_len) // attn_chunk_size if query_len else last
        for chunk in range(first, last + 1):
            start = chunk * attn_chunk_size // block_size
            columns = torch.arange(start, start + attn_chunk_size // block_size)
            rows.append(table[row, columns])
    return replace(made, block_table_tensor=torch.stack(rows)) if rows else made
