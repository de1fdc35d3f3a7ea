"""Attributes that are read of objects that an engine passes (SPEC.md appendix A)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch


class CompilationConfig(Protocol):
    """Attributes that are read of the compilation config."""

    @property
    def static_forward_context(self) -> Mapping[str, Any]:
        """Layers with state, by name; attention layers have an `impl`."""
        ...


class SpeculativeConfig(Protocol):
    """Attributes that are read of the speculative-decoding config."""

    @property
    def num_speculative_tokens(self) -> int | None:
        """Draft tokens per engine step and request, None if the number is not fixed."""
        ...


class VllmConfig(Protocol):
    """Attributes that are read of the engine's config."""

    @property
    def compilation_config(self) -> CompilationConfig:
        """Config that contains the layers."""
        ...

    @property
    def speculative_config(self) -> SpeculativeConfig | None:
        """Config of speculative decoding, None without it."""
        ...


class KVCacheSpec(Protocol):
    """Attributes that are read of a cache group's spec."""

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        ...


class SpecDecodeMetadata(Protocol):
    """Attributes that are read of a step's speculative-decoding metadata."""

    cu_num_draft_tokens: torch.Tensor
    """(R,) running sum of the requests' draft tokens, without a leading 0."""


class MambaSpec(KVCacheSpec, Protocol):
    """Attributes that are read of the spec of a cache group with state-space layers."""

    @property
    def num_speculative_blocks(self) -> int:
        """Blocks behind that of a sequence's last token, for the states of draft tokens."""
        ...


class ModelConfig(Protocol):
    """Attributes that are read of the model's config."""

    @property
    def hf_text_config(self) -> Any:
        """Object with the fields of `MLADims` (q_lora_rank optional) if attention is latent."""
        ...


class EncoderDecoderMetadata(Protocol):
    """Fields that are read of first-generation (V0) metadata; encoder fields may be absent."""

    num_prefill_tokens: int
    num_decode_tokens: int
    seq_lens_tensor: torch.Tensor | None
    """(R,) int32 tokens of each sequence."""
    max_prefill_seq_len: int
    max_decode_seq_len: int
    block_tables: torch.Tensor | None
    """(R, W) int32 block ids of each sequence."""
    encoder_seq_lens: list[int] | None
    """Encoder tokens of each request."""
    encoder_seq_lens_tensor: torch.Tensor | None
    """(R,) int32 encoder tokens of each request."""
    max_encoder_seq_len: int | None
    num_encoder_tokens: int | None
    """Encoder tokens of the whole batch."""
    cross_slot_mapping: torch.Tensor | None
    """(num_encoder_tokens,) int64 cache slots of the encoder tokens."""
    cross_block_tables: torch.Tensor | None
    """(R, W) int32 block ids of each request's encoder tokens."""


class AttentionLayer(Protocol):
    """Attributes that `AttentionImpl.forward` reads of its layer."""

    _q_scale: torch.Tensor
    _k_scale: torch.Tensor
    _v_scale: torch.Tensor
    _k_scale_float: float
    _v_scale_float: float

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
    ) -> torch.Tensor:
        """Run the attention of the layer."""
        ...


class XFormersConstants(Protocol):
    """Constants of an XFormers implementation that the checks of `forward` read."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    """Elements of one head."""
    kv_cache_dtype: str
