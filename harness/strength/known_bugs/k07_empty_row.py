"""K7, erratum E7: a row with no query and no sequence gets a key length of one chunk."""

from __future__ import annotations

from dataclasses import replace

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K7",
    "make_local_attention_virtual_batches",
    "erratum E7",
    ("zero-length row taken for a real one",),
)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> CommonAttentionMetadata:
    """Takes an empty virtual batch for a full one."""
    made = reference.make_local_attention_virtual_batches(
        attn_chunk_size, common_attn_metadata, block_size
    )
    seq_lens = torch.where(made.seq_lens == 0, attn_chunk_size, made.seq_lens)
    seq_lens = seq_lens.to(made.seq_lens.dtype)
    computed = seq_lens.cpu() - made.query_start_loc_cpu.diff()
    return replace(
        made,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens.cpu(),
        num_computed_tokens_cpu=computed.to(made.num_computed_tokens_cpu.dtype),
        max_seq_len=max(seq_lens.tolist(), default=0),
    )
