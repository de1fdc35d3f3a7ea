"""K25 in this backend: decodes get the keys of their last block to its end.

Lengths that fill their blocks do not show it, nor would a cache of zeros with few keys.
"""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K25b",
    "XFormersAttentionImpl",
    "9026",
    ("a slot read that no token was written to", "wrong attention in decodes"),
)


class XFormersAttentionImpl(reference.XFormersAttentionImpl):
    """Cuts the keys of decodes at a block's end and not at the sequence's."""

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: Any = None,
        output_scale: Any = None,
        output_block_scale: Any = None,
    ) -> torch.Tensor:
        """Attend, then once more for the decodes, to all that their last blocks hold."""
        tensors = (query, key, value, kv_cache, attn_metadata)
        scales = (output_scale, output_block_scale)
        returned = super().forward(layer, *tensors, output, *scales)
        decodes = attn_metadata.decode_metadata if attn_metadata is not None else None
        if decodes is not None:
            tokens, size = slice(0, decodes.num_actual_tokens), kv_cache.shape[2]
            seq_lens = -(-decodes.seq_lens // size) * size
            reference.paged_attention(
                query[tokens],
                kv_cache[0],
                kv_cache[1],
                decodes.query_start_loc,
                seq_lens,
                decodes.block_table,
                self.scale,
                max_query_len=decodes.max_query_len,
                max_seq_len=decodes.max_seq_len + size,
                sliding_window=self.window,
                logits_soft_cap=self.logits_soft_cap,
                k_scale=layer._k_scale,
                v_scale=layer._v_scale,
                out=returned.view(query.shape)[tokens],
            )
        return returned
