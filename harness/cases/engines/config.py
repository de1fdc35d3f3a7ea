"""An engine's objects, small but with the engine's manners: configs, layers, V0 metadata.

Implementations keep a sliding window in the several forms in which engines' do, layers
stand beside others that are no attention, and model configs lack what their model lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


class Impl:
    """One layer's attention as an engine makes it; `sliding_window` in tokens."""

    def __init__(
        self,
        scale: float,
        sliding_window: int | None = None,
        logits_soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.scale = scale
        for name, value in self._kept(sliding_window, logits_soft_cap, sinks).items():
            setattr(self, name, value)

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        """The other attributes, in the class's own form."""
        raise NotImplementedError


class CausalImpl(Impl):
    """Keeps the window as (left, right), (-1, -1) for none."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        sides = (-1, -1) if window is None else (window - 1, 0)
        return {"sliding_window": sides, "logits_soft_cap": soft_cap, "sinks": sinks}


class EncoderImpl(Impl):
    """Looks to both sides, as a list, None for no window; does not know sinks."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        del sinks
        sides = None if window is None else [window - 1, window - 1]
        return {"sliding_window": sides, "logits_soft_cap": soft_cap}


class MaskImpl(Impl):
    """Makes its mask itself, from the window in tokens as it was given."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        return {"sliding_window": window, "logits_soft_cap": soft_cap, "sinks": sinks}


class LatentImpl(Impl):
    """Has neither window nor cap nor sinks, not even as attributes."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        del window, soft_cap, sinks
        return {}


IMPLS: tuple[type[Impl], ...] = (CausalImpl, EncoderImpl, MaskImpl, LatentImpl)


@dataclass
class Layer:
    """An attention layer."""

    impl: Impl


@dataclass
class StateSpaceLayer:
    """A layer with state that is no attention."""

    state_size: int = 16


@dataclass
class CompilationConfig:
    """Where an engine registers its layers."""

    static_forward_context: dict[str, Any] = field(default_factory=dict)


@dataclass
class SpeculativeConfig:
    """Speculative decoding; some methods have no fixed number of tokens."""

    num_speculative_tokens: int | None


@dataclass
class EngineConfig:
    """The config that an engine passes around."""

    compilation_config: CompilationConfig
    speculative_config: SpeculativeConfig | None = None


class TextConfig:
    """A model's own config: whatever its file says, and nothing else."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@dataclass
class ModelConfig:
    """The config of a model."""

    hf_text_config: TextConfig


@dataclass(kw_only=True)
class DecoderMetadata:
    """First-generation (V0) metadata of a batch, as far as lengths and tables go."""

    num_prefills: int
    num_prefill_tokens: int
    num_decode_tokens: int
    seq_lens: list[int]
    seq_lens_tensor: torch.Tensor | None
    max_prefill_seq_len: int
    max_decode_seq_len: int
    block_tables: torch.Tensor | None


@dataclass(kw_only=True)
class EncoderDecoderMetadata(DecoderMetadata):
    """The same for a model with an encoder."""

    encoder_seq_lens: list[int] | None = None
    encoder_seq_lens_tensor: torch.Tensor | None = None
    max_encoder_seq_len: int | None = None
    num_encoder_tokens: int | None = None
    cross_slot_mapping: torch.Tensor | None = None
    cross_block_tables: torch.Tensor | None = None
