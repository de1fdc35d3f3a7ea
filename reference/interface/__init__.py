"""Types, protocols, constants and errors of the specification (SPEC.md section 1).

Imports nothing else of this project.
"""

from .constants import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    PAD_SLOT_ID,
    STR_NOT_IMPL_ENC_DEC_ROCM_HIP,
    AttentionCGSupport,
    AttentionType,
    KVCacheLayoutType,
)
from .context_chunks import ChunkedContext, ContextChunk
from .errors import MetadataError
from .fields import aligned
from .kv_manager import CacheBlocks, CacheGroup, CacheRequest
from .metadata import (
    InputBatch,
    KVSharingFastPrefillMetadata,
    MLADims,
    PerLayerParameters,
    SchedulerOutput,
    UBatchSlice,
)
from .protocols import (
    AttentionLayer,
    CompilationConfig,
    EncoderDecoderMetadata,
    KVCacheSpec,
    MambaSpec,
    ModelConfig,
    SpecDecodeMetadata,
    SpeculativeConfig,
    VllmConfig,
)
from .state_space import (
    BailingMetadata,
    GDNMetadata,
    KDAMetadata,
    LinearMetadata,
    MambaMetadata,
    PLEShortConvMetadata,
    StateSpaceConfig,
)

__all__ = [
    "KV_SHARING_FAST_PREFILL_METADATA_FIELDS",
    "PAD_SLOT_ID",
    "STR_NOT_IMPL_ENC_DEC_ROCM_HIP",
    "AttentionCGSupport",
    "AttentionLayer",
    "AttentionType",
    "BailingMetadata",
    "CacheBlocks",
    "CacheGroup",
    "CacheRequest",
    "ChunkedContext",
    "CompilationConfig",
    "ContextChunk",
    "EncoderDecoderMetadata",
    "GDNMetadata",
    "InputBatch",
    "KDAMetadata",
    "KVCacheLayoutType",
    "KVCacheSpec",
    "KVSharingFastPrefillMetadata",
    "LinearMetadata",
    "MLADims",
    "MambaMetadata",
    "MambaSpec",
    "MetadataError",
    "ModelConfig",
    "PLEShortConvMetadata",
    "PerLayerParameters",
    "SchedulerOutput",
    "SpecDecodeMetadata",
    "SpeculativeConfig",
    "StateSpaceConfig",
    "UBatchSlice",
    "VllmConfig",
    "aligned",
]
