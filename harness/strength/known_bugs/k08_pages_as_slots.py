"""K8: a kernel that counts tokens gets page ids as token slots, right for pages of one token."""

from __future__ import annotations

from dataclasses import replace

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.shared import CommonAttentionMetadata

BUG = Bug(
    "K8",
    "make_local_attention_virtual_batches",
    "sgl-project/sglang#38187",
    # Page 0 is slot 0: then only the other ids of the second pattern show it.
    ("pages taken for token slots", "depends on stale entries (pages taken for token slots)"),
)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> CommonAttentionMetadata:
    """Multiplies each page by its size, as if the table's reader wanted its first slot."""
    made = reference.make_local_attention_virtual_batches(
        attn_chunk_size, common_attn_metadata, block_size
    )
    return replace(made, block_table_tensor=made.block_table_tensor * block_size)
