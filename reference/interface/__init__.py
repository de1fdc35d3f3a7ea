"""What `reference` and `optimized` share: types, abstract classes, errors, `validate`.

SPEC.md section 1. Imports nothing else of this project.
"""

from .backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionLayer,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionMetadataBuilderV0,
    AttentionState,
    MLAAttentionImpl,
)
from .constants import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    PAD_SLOT_ID,
    STR_NOT_IMPL_ENC_DEC_ROCM_HIP,
    AttentionCGSupport,
    AttentionType,
    KVCacheLayoutType,
)
from .errors import MetadataError
from .kv_cache_layout import (
    get_kv_cache_layout,
    is_valid_kv_cache_layout,
    set_kv_cache_layout,
)
from .metadata import (
    CommonAttentionMetadata,
    InputBatch,
    KVSharingFastPrefillMetadata,
    MLADims,
    PerLayerParameters,
    SchedulerOutput,
    UBatchSlice,
)
from .validation import validate

__all__ = [
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
    "PAD_SLOT_ID",
    "STR_NOT_IMPL_ENC_DEC_ROCM_HIP",
    "AttentionBackend",
    "AttentionCGSupport",
    "AttentionImpl",
    "AttentionLayer",
    "AttentionMetadata",
    "AttentionMetadataBuilder",
    "AttentionMetadataBuilderV0",
    "AttentionState",
    "AttentionType",
    "CommonAttentionMetadata",
    "InputBatch",
    "KVCacheLayoutType",
    "KVSharingFastPrefillMetadata",
    "MLAAttentionImpl",
    "MLADims",
    "MetadataError",
    "PerLayerParameters",
    "SchedulerOutput",
    "UBatchSlice",
    "get_kv_cache_layout",
    "is_valid_kv_cache_layout",
    "set_kv_cache_layout",
    "validate",
]
