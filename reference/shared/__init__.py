"""Implementations that `reference` and `optimized` share: they have nothing to optimize.

`CommonAttentionMetadata` is here because its graph padding is shared.
"""

from .backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionMetadataBuilderV0,
    AttentionState,
    MLAAttentionImpl,
)
from .batch_builder import BatchMetadataBuilder
from .block_hashes import match_block_hashes
from .context_chunks import build_mla_chunked_context_metadata
from .delta_builders import gdn_build, kda_build, ple_short_conv_build
from .encoder_decoder import (
    get_num_prefill_decode_query_kv_tokens,
    get_seq_len_block_table_args,
    is_all_cross_attn_metadata_set,
    is_all_encoder_attn_metadata_set,
)
from .gathered_context import reorg_kvcache
from .graph_state import CommonAttentionState
from .indexer_chunks import split_indexer_prefill_chunks
from .kv_cache_layout import (
    get_kv_cache_layout,
    is_valid_kv_cache_layout,
    set_kv_cache_layout,
)
from .kv_manager import KVCacheManager
from .layer_parameters import (
    get_mla_dims,
    get_per_layer_parameters,
    infer_global_hyperparameters,
)
from .metadata import CommonAttentionMetadata, CommonAttentionMetadataV32
from .offload import copy_offloaded_blocks
from .radix_cache import RadixCache
from .sequence_slots import compute_slot_mapping_start_idx, is_block_tables_empty
from .spec_decode import (
    reshape_attn_output_for_spec_decode,
    reshape_query_for_spec_decode,
)
from .state_builders import bailing_build, linear_build, mamba_build
from .state_graphs import StateSpaceBuilder
from .state_moves import postprocess_mamba_align, preprocess_mamba_align
from .state_space import compute_mamba_prefill_checkpoints, compute_varlen_chunk_metadata
from .subclasses import subclass_attention_backend, subclass_attention_metadata
from .tp_mapping import compute_tp_mapping
from .transfers import map_block_ids_for_block_size_ratio, pair_block_ids
from .xformers import XFormersAttentionMetadata
from .zeroing import zero_blocks

__all__ = [
    "AttentionBackend",
    "AttentionImpl",
    "AttentionMetadata",
    "AttentionMetadataBuilder",
    "AttentionMetadataBuilderV0",
    "AttentionState",
    "BatchMetadataBuilder",
    "CommonAttentionMetadata",
    "CommonAttentionMetadataV32",
    "CommonAttentionState",
    "KVCacheManager",
    "MLAAttentionImpl",
    "RadixCache",
    "StateSpaceBuilder",
    "XFormersAttentionMetadata",
    "bailing_build",
    "build_mla_chunked_context_metadata",
    "compute_mamba_prefill_checkpoints",
    "compute_slot_mapping_start_idx",
    "compute_tp_mapping",
    "compute_varlen_chunk_metadata",
    "copy_offloaded_blocks",
    "gdn_build",
    "get_kv_cache_layout",
    "get_mla_dims",
    "get_num_prefill_decode_query_kv_tokens",
    "get_per_layer_parameters",
    "get_seq_len_block_table_args",
    "infer_global_hyperparameters",
    "is_all_cross_attn_metadata_set",
    "is_all_encoder_attn_metadata_set",
    "is_block_tables_empty",
    "is_valid_kv_cache_layout",
    "kda_build",
    "linear_build",
    "mamba_build",
    "map_block_ids_for_block_size_ratio",
    "match_block_hashes",
    "pair_block_ids",
    "ple_short_conv_build",
    "postprocess_mamba_align",
    "preprocess_mamba_align",
    "reorg_kvcache",
    "reshape_attn_output_for_spec_decode",
    "reshape_query_for_spec_decode",
    "set_kv_cache_layout",
    "split_indexer_prefill_chunks",
    "subclass_attention_backend",
    "subclass_attention_metadata",
    "zero_blocks",
]
