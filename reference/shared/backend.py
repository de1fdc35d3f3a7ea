"""Abstract classes of an attention backend (SPEC.md section 1, signatures in appendix A)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Generic, TypeVar

import torch

from ..interface.constants import AttentionCGSupport, AttentionType
from ..interface.protocols import AttentionLayer, KVCacheSpec, VllmConfig
from .metadata import CommonAttentionMetadata

M = TypeVar("M")
Pairs = torch.Tensor
"""(N, 2) int64: source block id, destination block id."""


class AttentionBackend(ABC):
    """Classes and cache operations of one attention backend."""

    accept_output_buffer: ClassVar[bool] = False
    """True if `forward` writes into a buffer that the caller passes."""

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """Return the backend's registered name."""

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        """Return the class that runs attention."""

    @staticmethod
    @abstractmethod
    def get_metadata_cls() -> type[Any]:
        """Return the class of the metadata of an engine step."""

    @staticmethod
    @abstractmethod
    def get_state_cls() -> type[AttentionState]:
        """Return the class of the graph state."""

    @classmethod
    def make_metadata(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an instance of `get_metadata_cls()`."""
        return cls.get_metadata_cls()(*args, **kwargs)

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type[Any]:
        """Return the class that builds the metadata."""

    @staticmethod
    @abstractmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return the shape of one layer's cache, in elements."""

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        """Return the physical order of the dimensions; NotImplementedError unless overridden."""
        raise NotImplementedError

    @staticmethod
    @abstractmethod
    def swap_blocks(
        src_kv_cache: torch.Tensor, dst_kv_cache: torch.Tensor, src_to_dst: Pairs
    ) -> None:
        """Copy blocks of one layer between two caches."""

    @staticmethod
    @abstractmethod
    def copy_blocks(kv_caches: list[torch.Tensor], src_to_dists: Pairs) -> None:
        """Copy blocks within the cache of every layer."""

    @classmethod
    def full_cls_name(cls) -> tuple[str, str]:
        """Return the module and the qualified name of the class."""
        return (cls.__module__, cls.__qualname__)


@dataclass
class AttentionMetadata:
    """First-generation (V0) metadata, the base class of every backend's."""

    num_prefills: int
    num_prefill_tokens: int
    num_decode_tokens: int
    slot_mapping: torch.Tensor
    """(num_prefill_tokens + num_decode_tokens,) int64 cache slots, -1 for none."""
    multi_modal_placeholder_index_maps: dict[str, Any] | None
    enable_kv_scales_calculation: bool

    @property
    @abstractmethod
    def prefill_metadata(self) -> AttentionMetadata | None:
        """Prefill part of the batch, None without prefills."""

    @property
    @abstractmethod
    def decode_metadata(self) -> AttentionMetadata | None:
        """Decode part of the batch, None without decodes."""

    def asdict_zerocopy(self, skip_fields: set[str] | None = None) -> dict[str, Any]:
        """Return the fields by name; values are not copied."""
        skip = skip_fields or set()
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}


class AttentionState(ABC):
    """State that a backend keeps between engine steps for CUDA graphs."""

    @abstractmethod
    def __init__(self, runner: Any) -> None: ...

    @abstractmethod
    def graph_capture(self, max_batch_size: int) -> AbstractContextManager[None]:
        """Return a context in which graphs of up to `max_batch_size` rows are captured."""

    @abstractmethod
    def graph_clone(self, batch_size: int) -> AttentionState:
        """Return a copy of the state for graphs of `batch_size` rows."""

    @abstractmethod
    def graph_capture_get_metadata_for_batch(
        self, batch_size: int, is_encoder_decoder_model: bool = False
    ) -> Any:
        """Return metadata of a decode-only batch to capture."""

    @abstractmethod
    def get_graph_input_buffers(
        self, attn_metadata: Any, is_encoder_decoder_model: bool = False
    ) -> dict[str, Any]:
        """Return the input tensors of the captured graph, by name."""

    @abstractmethod
    def prepare_graph_input_buffers(
        self,
        input_buffers: dict[str, Any],
        attn_metadata: Any,
        is_encoder_decoder_model: bool = False,
    ) -> None:
        """Copy the metadata of an engine step into the captured graph's input tensors."""

    @abstractmethod
    def begin_forward(self, model_input: Any) -> None:
        """Prepare a forward pass; called before each one."""


class AttentionMetadataBuilderV0(ABC, Generic[M]):
    """First-generation (V0) builder: makes metadata from an input builder's sequences."""

    @abstractmethod
    def __init__(self, input_builder: Any) -> None: ...

    @abstractmethod
    def prepare(self) -> None:
        """Discard the previous batch."""

    @abstractmethod
    def build(
        self,
        seq_lens: list[int],
        query_lens: list[int],
        cuda_graph_pad_size: int,
        batch_size: int,
    ) -> M:
        """Build the metadata of the batch; a pad size of -1 means no graph."""


class AttentionMetadataBuilder(ABC, Generic[M]):
    """Second-generation (V1) builder: makes metadata from the common metadata of a batch."""

    cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None
    """Longest query, in tokens, of a decode when a batch is reordered; None: no reordering."""

    @abstractmethod
    def __init__(
        self,
        kv_cache_spec: KVCacheSpec,
        layer_names: list[str],
        vllm_config: VllmConfig,
        device: torch.device,
    ) -> None:
        self.kv_cache_spec = kv_cache_spec
        self.layer_names = layer_names
        self.vllm_config = vllm_config
        self.device = device

    def _init_reorder_batch_threshold(
        self, reorder_batch_threshold: int = 1, supports_spec_as_decode: bool = False
    ) -> None:
        """Set the threshold, at least 1 + num_speculative_tokens if drafts count as decodes."""
        self.reorder_batch_threshold = reorder_batch_threshold
        speculative = self.vllm_config.speculative_config
        tokens = getattr(speculative, "num_speculative_tokens", None)
        if supports_spec_as_decode and tokens is not None:
            self.reorder_batch_threshold = max(reorder_batch_threshold, 1 + tokens)

    @abstractmethod
    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
    ) -> M:
        """Build the metadata; `fast_build` prefers a fast build to a fast forward pass."""

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> M:
        """Build the metadata for a graph capture."""
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def build_for_drafting(
        self, common_attn_metadata: CommonAttentionMetadata, draft_index: int
    ) -> M:
        """Build the metadata of the drafter's forward pass `draft_index`."""
        return self.build(
            common_prefix_len=0,
            common_attn_metadata=common_attn_metadata,
            fast_build=True,
        )

    def use_cascade_attention(
        self,
        common_prefix_len: int,
        query_lens: Any,
        num_query_heads: int,
        num_kv_heads: int,
        use_alibi: bool,
        use_sliding_window: bool,
        use_local_attention: bool,
        num_sms: int,
    ) -> bool:
        """True if attention to the shared prefix is computed separately."""
        return False


class AttentionImpl(ABC, Generic[M]):
    """Attention of one layer: (T, Hq, D) queries over the paged cache."""

    @abstractmethod
    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
    ) -> None: ...

    @abstractmethod
    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: M,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the new keys and values to the cache, then compute attention."""

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """True if `forward` can quantise its output itself."""
        return False


class MLAAttentionImpl(AttentionImpl[M], Generic[M]):
    """Multi-head latent attention, with compressed keys and values."""

    @abstractmethod
    def forward(
        self,
        layer: AttentionLayer,
        hidden_states_or_cq: torch.Tensor,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: M,
        output: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the compressed keys and values to the cache, then compute attention."""
