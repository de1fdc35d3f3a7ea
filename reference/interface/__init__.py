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
    "validate",
]
