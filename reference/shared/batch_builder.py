"""The builder whose metadata is the batch itself (SPEC.md section 7)."""

from __future__ import annotations

from typing import Any

import torch

from .backend import AttentionMetadataBuilder
from .metadata import CommonAttentionMetadata


class BatchMetadataBuilder(AttentionMetadataBuilder[CommonAttentionMetadata]):
    """Builder that returns the batch: what the fields of any builder's metadata must equal."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> CommonAttentionMetadata:
        """Return the batch."""
        del common_prefix_len, fast_build
        return common_attn_metadata
