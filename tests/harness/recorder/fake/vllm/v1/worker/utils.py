"""Groups of layers, and their builders."""

from dataclasses import dataclass, field
from typing import Any

from vllm.v1.attention.backends.utils import split_decodes_and_prefills


@dataclass
class FullAttentionSpec:
    """Specification of a KV cache."""

    block_size: int


class Builder:
    """A builder that splits its batch."""

    supports_update_block_table = True

    def __init__(self, spec):
        self.kv_cache_spec = spec

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        """Return metadata of a backend."""
        return {"split": split_decodes_and_prefills(common_attn_metadata, decode_threshold=1)}

    def update_block_table(self, metadata, blk_table, slot_mapping):
        """Return the metadata with another table."""
        return {**metadata, "table": blk_table}


@dataclass
class AttentionGroup:
    """Layers of one KV cache."""

    kv_cache_spec: Any
    kv_cache_group_id: int
    kernel_block_size: int | None = None
    metadata_builders: list = field(default_factory=list)

    def get_metadata_builder(self, ubatch_id=0):
        """Return a builder."""
        return self.metadata_builders[ubatch_id]

    def build_metadata(self, common_attn_metadata, ubatch_idx=0, common_prefix_len=0, **kwargs):
        """Build metadata."""
        return self.get_metadata_builder(ubatch_idx).build(common_prefix_len, common_attn_metadata)

    def build_metadata_for_cudagraph_capture(self, common_attn_metadata, ubatch_idx=0):
        """Build metadata for a capture."""
        return self.build_metadata(common_attn_metadata, ubatch_idx)

    def build_metadata_for_drafting(self, common_attn_metadata, draft_index):
        """Build metadata for a draft."""
        return self.get_metadata_builder().build(0, common_attn_metadata)
