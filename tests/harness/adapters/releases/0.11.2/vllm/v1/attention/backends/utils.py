"""Batches of a release that has most of our fields, and looks at how far requests have come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class CommonAttentionMetadata:
    query_start_loc: Any
    query_start_loc_cpu: Any
    seq_lens: Any
    seq_lens_cpu: Any
    num_computed_tokens_cpu: Any
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: Any
    slot_mapping: Any
    causal: bool = True
    logits_indices_padded: Any = None
    num_logits_indices: int | None = None
    encoder_seq_lens: Any = None
    dcp_local_seq_lens: Any = None
    unknown_to_us: str = "left alone"


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    assert type(common_attn_metadata) is CommonAttentionMetadata
    return common_attn_metadata.num_reqs, 0, decode_threshold, int(require_uniform)


def reorder_batch_to_split_decodes_and_prefills(input_batch, scheduler_output, decode_threshold=1):
    """Whoever has computed nothing yet would go behind the others."""
    moved = bool(input_batch.num_computed_tokens_cpu[0] == 0)
    if moved:
        input_batch.swap_states(0, len(input_batch.req_ids) - 1)
    return moved


def make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata):
    return common_attn_metadata


class AttentionMetadataBuilder:
    cudagraph_support = "NEVER"

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.ranks = vllm_config.parallel_config.decode_context_parallel_size

    def _init_reorder_batch_threshold(self, reorder_batch_threshold=1):
        self.reorder_batch_threshold = reorder_batch_threshold

    def use_cascade_attention(self, common_prefix_len, query_lens, dcp_world_size):
        return common_prefix_len > dcp_world_size


class AttentionLayerBase:
    pass


def get_per_layer_parameters(vllm_config, layer_names, cls_):
    context = vllm_config.compilation_config.static_forward_context
    layers = {name: context[name] for name in layer_names}
    return {name: one.impl for name, one in layers.items() if isinstance(one, AttentionLayerBase)}


def create_fast_prefill_custom_backend(prefix, underlying_attn_backend):
    class Builder(underlying_attn_backend.get_builder_cls()):
        def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
            assert type(common_attn_metadata) is CommonAttentionMetadata
            return super().build(common_prefix_len, common_attn_metadata, fast_build)

    members = {"get_builder_cls": staticmethod(lambda: Builder)}
    return type(prefix + "Backend", (underlying_attn_backend,), members)
