"""Builders of state-space metadata of vLLM, which are classes with a configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from attnproof.harness.adapters.quiet import quietly
from attnproof.harness.adapters.vllm.installed import find
from attnproof.harness.adapters.vllm.metadata import UTILS, theirs
from attnproof.reference import StateSpaceConfig

_BACKENDS = "v1.attention.backends"
_CLASSES = {
    "mamba1": (f"{_BACKENDS}.mamba1_attn", "Mamba1AttentionMetadataBuilder"),
    "mamba2": (f"{_BACKENDS}.mamba2_attn", "Mamba2AttentionMetadataBuilder"),
    "short_conv": (f"{_BACKENDS}.short_conv_attn", "ShortConvAttentionMetadataBuilder"),
    "ple_short_conv": (f"{_BACKENDS}.short_conv_attn", "PleShortConvAttentionMetadataBuilder"),
    "gdn": (f"{_BACKENDS}.gdn_attn", "GDNAttentionMetadataBuilder"),
    "linear": (f"{_BACKENDS}.linear_attn", "LinearAttentionMetadataBuilder"),
    "bailing": (f"{_BACKENDS}.linear_attn", "BailingLinearAttentionMetadataBuilder"),
}
_KDA = ("models.kimi_k3.nvidia.kda_metadata", "KimiK3KDAMetadataBuilder")
_GDN_LAYER = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
"""Module whose import needs compiled operators; the builder asks it for the kernel of prefills."""


def mamba_build(_: Any) -> Callable[..., Any]:
    """Return a function that builds with the class of the configuration's layers."""
    return lambda md, config, *counts: _built(_layer_class(config.layer), md, config, counts)


def build(cls: type[Any]) -> Callable[..., Any]:
    """Return a function that builds with a class."""
    return lambda md, config, *counts: _built(cls, md, config, counts)


def gdn_build(cls: type[Any]) -> Callable[..., Any]:
    """Return a function that builds with vLLM's class, for the Triton kernel of prefills."""
    _stub_gdn_layer()
    return build(cls)


def kda_build(_: Any) -> Callable[..., Any]:
    """Return a function that builds with vLLM's class for Kimi delta attention."""
    return build(_layer_class("kda"))


def _stub_gdn_layer() -> None:
    if _GDN_LAYER not in sys.modules:
        stub: Any = ModuleType(_GDN_LAYER)
        stub._resolve_gdn_prefill_backend = lambda _config: ("auto", "triton")
        sys.modules[_GDN_LAYER] = stub


def _layer_class(layer: str) -> Any:
    """Return the builder of a kind of layers."""
    if layer in ("gdn", "kda"):
        _stub_gdn_layer()
    if layer != "kda":
        place, name = _CLASSES[layer]
        return find((place,), name)
    # Packages of the model import its kernels; the builder does not need them.
    folder = Path(quietly("vllm").__file__ or "").parent
    for package in ("models.kimi_k3", "models.kimi_k3.nvidia"):
        stub = ModuleType(f"vllm.{package}")
        stub.__path__ = [str(folder.joinpath(*package.split(".")))]
        sys.modules.setdefault(stub.__name__, stub)
    return find(_KDA[:1], _KDA[1])


def _built(cls: Any, md: Any, config: StateSpaceConfig, counts: tuple[Any, ...]) -> Any:
    builder = _builder(cls, config, md.query_start_loc.device)
    _align(builder, md.block_table_tensor, md.seq_lens)
    return builder.build(0, theirs(md), **_named(counts))


def _named(counts: tuple[Any, ...]) -> dict[str, Any]:
    names = ("num_accepted_tokens", "num_decode_draft_tokens_cpu")
    return dict(zip(names, counts, strict=False))


def _align(builder: Any, table: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Give the blocks of states to a builder that has them from the runner, by its kernel."""
    config = builder.vllm_config.cache_config
    if hasattr(builder, "mamba_aligned_state_indices") and config.mamba_cache_mode == "align":
        gather = find((UTILS,), "mamba_get_block_table_tensor")
        found = gather(table, seq_lens, builder.kv_cache_spec, config.mamba_cache_mode)
        builder.mamba_aligned_state_indices = found


def _builder(cls: Any, config: StateSpaceConfig, device: torch.device) -> Any:
    spec = find(("v1.kv_cache_interface",), "MambaSpec")(
        block_size=config.block_size,
        shapes=(),
        dtypes=(),
        mamba_cache_mode=config.mamba_cache_mode,
        num_speculative_blocks=config.num_speculative_tokens,
        num_prefill_checkpoint_blocks=config.checkpoint_alignment is not None,
        prefill_checkpoint_alignment=config.checkpoint_alignment,
    )
    return cls(spec, ["model.layers.0"], _vllm_config(config), device)


def graph_builder(_: Any) -> Any:
    """Return a class that builds with the class of the configuration's layers."""
    return _GraphBuilder


class _GraphBuilder:
    """Builder of vLLM for one group, on the CPU."""

    def __init__(self, config: StateSpaceConfig) -> None:
        self._builder = _builder(_layer_class(config.layer), config, torch.device("cpu"))
        if config.layer == "gdn":  # it has them on a device only
            self._builder.mamba_aligned_state_indices = None

    def build(self, md: Any, *counts: Any) -> Any:
        """Build for a step."""
        self._take(md)
        return self._builder.build(0, theirs(md), **_named(counts))

    def build_for_cudagraph_capture(self, md: Any) -> Any:
        """Build for the capture of a graph."""
        self._take(md)
        return self._builder.build_for_cudagraph_capture(theirs(md))

    def update_block_table(self, metadata: Any, table: Any, slots: Any) -> Any:
        """Build from the metadata of another group."""
        _align(self._builder, table, _GraphBuilder.lengths)
        return self._builder.update_block_table(metadata, table, slots)

    def _take(self, md: Any) -> None:
        _GraphBuilder.lengths = md.seq_lens
        _align(self._builder, md.block_table_tensor, md.seq_lens)

    lengths = torch.zeros(0, dtype=torch.int32)
    """Lengths of the step, which the runner has for all groups."""


def _vllm_config(config: StateSpaceConfig) -> SimpleNamespace:
    """Return what the builders read of an engine's configuration."""
    drafts = config.num_speculative_tokens
    drafter = SimpleNamespace(
        num_speculative_tokens=drafts,
        parallel_drafting=False,
        use_eagle_block_drop=lambda: False,
    )
    graphs = SimpleNamespace(has_full_cudagraphs=lambda: config.has_full_graphs)
    return SimpleNamespace(
        additional_config=None,
        num_speculative_tokens=drafts,
        num_hash_lookahead_tokens=0,
        use_v2_model_runner=False,
        speculative_config=drafter if drafts else None,
        cache_config=SimpleNamespace(
            mamba_cache_mode=config.mamba_cache_mode,
            use_kda_recoverssm=False,
            hash_block_size=config.hash_block_size,
            cache_hit_alignment_tokens=config.cache_hit_alignment_tokens,
            use_replayssm=False,
            replayssm_buffer_len=0,
        ),
        compilation_config=SimpleNamespace(cudagraph_mode=graphs, max_cudagraph_capture_size=None),
        mamba_config=SimpleNamespace(backend=None),
        model_config=SimpleNamespace(get_mamba_chunk_size=lambda: config.chunk_size),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=config.max_num_seqs),
    )
