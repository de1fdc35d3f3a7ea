"""K24, erratum E14: in a step's `forward` decodes know neither sliding window nor soft cap."""

from __future__ import annotations

from typing import Any

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K24b",
    "XFormersAttentionImpl",
    "erratum E14",
    ("sliding window ignored in decodes", "soft cap ignored in decodes"),
)


class XFormersAttentionImpl(reference.XFormersAttentionImpl):
    """Attends to decodes as to a layer without window and soft cap."""

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
        """Attend, then once more for the decodes, without either."""
        tensors = (query, key, value, kv_cache, attn_metadata)
        scales = (output_scale, output_block_scale)
        returned = super().forward(layer, *tensors, output, *scales)
        decodes = attn_metadata.decode_metadata if attn_metadata is not None else None
        if decodes is not None:
            tokens = slice(0, decodes.num_actual_tokens)
            reference.paged_attention(
                query[tokens],
                kv_cache[0],
                kv_cache[1],
                decodes.query_start_loc,
                decodes.seq_lens,
                decodes.block_table,
                self.scale,
                max_query_len=decodes.max_query_len,
                max_seq_len=decodes.max_seq_len,
                k_scale=layer._k_scale,
                v_scale=layer._v_scale,
                out=returned.view(query.shape)[tokens],
            )
        return returned
