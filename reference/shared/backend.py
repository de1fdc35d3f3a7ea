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
    """The classes and cache operations that make up one attention backend."""

    accept_output_buffer: ClassVar[bool] = False
    """Whether `forward` writes into a buffer that the caller gives."""

    @staticmethod
    @abstractmethod
    def get_name() -> str:
        """The backend's registered name."""

    @staticmethod
    @abstractmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        """The class that runs attention."""

    @staticmethod
    @abstractmethod
    def get_metadata_cls() -> type[Any]:
        """The class of its per-step metadata."""

    @staticmethod
    @abstractmethod
    def get_state_cls() -> type[AttentionState]:
        """The class of its graph state."""

    @classmethod
    def make_metadata(cls, *args: Any, **kwargs: Any) -> Any:
        """An instance of `get_metadata_cls()`."""
        return cls.get_metadata_cls()(*args, **kwargs)

    @staticmethod
    @abstractmethod
    def get_builder_cls() -> type[Any]:
        """The class that builds its metadata."""

    @staticmethod
    @abstractmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Shape of one layer's cache, in elements."""

    @staticmethod
    def get_kv_cache_stride_order() -> tuple[int, ...]:
        """Physical order of the cache's dimensions; NotImplementedError unless overridden."""
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
        """Module and qualified name of the class."""
        return (cls.__module__, cls.__qualname__)


@dataclass
class AttentionMetadata:
    """First-generation (V0) metadata that every backend's class extends."""

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
        """The prefill part of the batch, None without prefills."""

    @property
    @abstractmethod
    def decode_metadata(self) -> AttentionMetadata | None:
        """The decode part of the batch, None without decodes."""

    def asdict_zerocopy(self, skip_fields: set[str] | None = None) -> dict[str, Any]:
        """Field name to value, the values themselves and not copies."""
        skip = skip_fields or set()
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in skip}


class AttentionState(ABC):
    """What a backend keeps between steps for CUDA graphs."""

    @abstractmethod
    def __init__(self, runner: Any) -> None: ...

    @abstractmethod
    def graph_capture(self, max_batch_size: int) -> AbstractContextManager[None]:
        """Context in which graphs of up to `max_batch_size` rows are captured."""

    @abstractmethod
    def graph_clone(self, batch_size: int) -> AttentionState:
        """A copy of the state for graphs of `batch_size` rows."""

    @abstractmethod
    def graph_capture_get_metadata_for_batch(
        self, batch_size: int, is_encoder_decoder_model: bool = False
    ) -> Any:
        """Metadata of a decode-only batch to capture."""

    @abstractmethod
    def get_graph_input_buffers(
        self, attn_metadata: Any, is_encoder_decoder_model: bool = False
    ) -> dict[str, Any]:
        """The captured graph's input tensors by name."""

    @abstractmethod
    def prepare_graph_input_buffers(
        self,
        input_buffers: dict[str, Any],
        attn_metadata: Any,
        is_encoder_decoder_model: bool = False,
    ) -> None:
        """Copy a step's metadata into the captured graph's input tensors."""

    @abstractmethod
    def begin_forward(self, model_input: Any) -> None:
        """Called before each forward pass."""


class AttentionMetadataBuilderV0(ABC, Generic[M]):
    """First-generation builder: from the sequences of an input builder (V0)."""

    @abstractmethod
    def __init__(self, input_builder: Any) -> None: ...

    @abstractmethod
    def prepare(self) -> None:
        """Forget the previous batch."""

    @abstractmethod
    def build(
        self,
        seq_lens: list[int],
        query_lens: list[int],
        cuda_graph_pad_size: int,
        batch_size: int,
    ) -> M:
        """Metadata of the batch; a pad size of -1 means no graph."""


class AttentionMetadataBuilder(ABC, Generic[M]):
    """Second-generation builder: from the batch's common metadata (V1)."""

    cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.NEVER
    reorder_batch_threshold: int | None = None
    """Longest query that counts as a decode when the batch is reordered, None for no reordering."""

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
        """Set the threshold, raised to 1 + num_speculative_tokens where the config says so."""
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
        """Metadata of the batch; `fast_build` favours building over running."""

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> M:
        """Metadata to capture a graph with."""
        return self.build(common_prefix_len=0, common_attn_metadata=common_attn_metadata)

    def build_for_drafting(
        self, common_attn_metadata: CommonAttentionMetadata, draft_index: int
    ) -> M:
        """Metadata of the drafter's step `draft_index`."""
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
        """Whether the shared prefix is attended to separately."""
        return False


class AttentionImpl(ABC, Generic[M]):
    """One layer's attention: (T, Hq, D) queries over the paged cache."""

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
        """Write the new keys and values to the cache, then attend."""

    def fused_output_quant_supported(self, quant_key: Any) -> bool:
        """Whether `forward` can quantise its output itself."""
        return False


class MLAAttentionImpl(AttentionImpl[M], Generic[M]):
    """Multi-head latent attention: keys and values come compressed."""

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
        """Write the compressed keys and values to the cache, then attend."""
