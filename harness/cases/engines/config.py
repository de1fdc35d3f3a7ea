"""Stand-ins for an engine's configs, layers and V0 metadata.

Implementations keep the sliding window in the forms that real ones use. Some layers have
no attention, and a model config has only the fields of its model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


class Impl:
    """Attention implementation of one layer; `sliding_window` is given in tokens."""

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
        """Return the other attributes by name, in the form of the class."""
        raise NotImplementedError


class CausalImpl(Impl):
    """Implementation that keeps the window as (left, right), (-1, -1) for none."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        sides = (-1, -1) if window is None else (window - 1, 0)
        return {"sliding_window": sides, "logits_soft_cap": soft_cap, "sinks": sinks}


class EncoderImpl(Impl):
    """Implementation with a window to both sides, a list or None, and without sinks."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        del sinks
        sides = None if window is None else [window - 1, window - 1]
        return {"sliding_window": sides, "logits_soft_cap": soft_cap}


class MaskImpl(Impl):
    """Implementation that keeps the window in tokens, None for none."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        return {"sliding_window": window, "logits_soft_cap": soft_cap, "sinks": sinks}


class LatentImpl(Impl):
    """Implementation without attributes for window, soft cap and sinks."""

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        del window, soft_cap, sinks
        return {}


class DerivedImpl(Impl):
    """Implementation with properties for window and sinks, and a soft cap of the class for none."""

    logits_soft_cap: float | None = None
    _window: int | None
    _sinks: torch.Tensor | None

    def _kept(self, window: int | None, soft_cap: Any, sinks: Any) -> dict[str, Any]:
        cap = {} if soft_cap is None else {"logits_soft_cap": soft_cap}
        return cap | {"_window": window, "_sinks": sinks}

    @property
    def sliding_window(self) -> tuple[int, int]:
        """Window as (left, right), (-1, -1) for none."""
        return (-1, -1) if self._window is None else (self._window - 1, 0)

    @property
    def sinks(self) -> torch.Tensor | None:
        """Sinks that were given."""
        return self._sinks


IMPLS: tuple[type[Impl], ...] = (CausalImpl, EncoderImpl, MaskImpl, LatentImpl, DerivedImpl)


@dataclass
class Layer:
    """An attention layer."""

    impl: Impl


@dataclass
class StateSpaceLayer:
    """A layer with a state and without attention."""

    state_size: int = 16


@dataclass
class CompilationConfig:
    """Compilation config, in which an engine registers its layers by name."""

    static_forward_context: dict[str, Any] = field(default_factory=dict)


@dataclass
class SpeculativeConfig:
    """Config of speculative decoding."""

    num_speculative_tokens: int | None
    """None for methods without a fixed number of tokens."""


@dataclass
class EngineConfig:
    """Stand-in for `vllm_config`."""

    compilation_config: CompilationConfig
    speculative_config: SpeculativeConfig | None = None


class TextConfig:
    """Config of a text model, with exactly the given fields."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


@dataclass
class ModelConfig:
    """Config of a model."""

    hf_text_config: TextConfig


@dataclass(kw_only=True)
class DecoderMetadata:
    """First-generation (V0) metadata of a batch: its lengths and block tables only."""

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
    """First-generation (V0) metadata of a batch of an encoder-decoder model."""

    encoder_seq_lens: list[int] | None = None
    encoder_seq_lens_tensor: torch.Tensor | None = None
    max_encoder_seq_len: int | None = None
    num_encoder_tokens: int | None = None
    cross_slot_mapping: torch.Tensor | None = None
    cross_block_tables: torch.Tensor | None = None
