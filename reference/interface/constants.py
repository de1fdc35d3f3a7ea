"""Constants of the attention-metadata layer (SPEC.md section 1)."""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal

PAD_SLOT_ID: Final = -1
"""The slot of a token that must not be written to the cache."""

STR_NOT_IMPL_ENC_DEC_ROCM_HIP: Final = (
    "Encoder-decoder models are not supported by the ROCm/HIP attention backends."
)

KV_SHARING_FAST_PREFILL_METADATA_FIELDS: Final = [
    ("logits_indices_padded", "torch.Tensor | None", None),
    ("num_logits_indices", "int", 0),
]
"""Fields (name, annotation, default) that fast prefill adds to a metadata class."""

KVCacheLayoutType = Literal["NHD", "HND"]


class AttentionCGSupport(Enum):
    """Batches for which a captured CUDA graph can include a backend's attention."""

    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionType:
    """Kinds of attention, as the strings that backends compare with."""

    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"
