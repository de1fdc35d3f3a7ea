"""Builders of state-space metadata of vLLM, which are classes with a configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from attnproof.harness.adapters.vllm.installed import find
from attnproof.harness.adapters.vllm.metadata import theirs
from attnproof.reference import StateSpaceConfig

_BACKENDS = "v1.attention.backends"
_CLASSES = {
    "mamba1": (f"{_BACKENDS}.mamba1_attn", "Mamba1AttentionMetadataBuilder"),
    "mamba2": (f"{_BACKENDS}.mamba2_attn", "Mamba2AttentionMetadataBuilder"),
    "short_conv": (f"{_BACKENDS}.short_conv_attn", "ShortConvAttentionMetadataBuilder"),
}
_GDN_LAYER = "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn"
"""Module whose import needs compiled operators; the builder asks it for the kernel of prefills."""


def mamba_build(_: Any) -> Callable[..., Any]:
    """Return a function that builds with the class of the configuration's layers."""
    return lambda md, config, *counts: _built(_mamba_class(config), md, config, counts)


def build(cls: type[Any]) -> Callable[..., Any]:
    """Return a function that builds with a class."""
    return lambda md, config, *counts: _built(cls, md, config, counts)


def gdn_build(cls: type[Any]) -> Callable[..., Any]:
    """Return a function that builds with vLLM's class, for the Triton kernel of prefills."""
    if _GDN_LAYER not in sys.modules:
        stub: Any = ModuleType(_GDN_LAYER)
        stub._resolve_gdn_prefill_backend = lambda _config: ("auto", "triton")
        sys.modules[_GDN_LAYER] = stub
    return build(cls)


def _mamba_class(config: StateSpaceConfig) -> Any:
    place, name = _CLASSES[config.layer]
    return find((place,), name)


def _built(cls: Any, md: Any, config: StateSpaceConfig, counts: tuple[Any, ...]) -> Any:
    spec = find(("v1.kv_cache_interface",), "MambaSpec")(
        block_size=config.block_size,
        shapes=(),
        dtypes=(),
        mamba_cache_mode=config.mamba_cache_mode,
        num_speculative_blocks=config.num_speculative_tokens,
        num_prefill_checkpoint_blocks=config.checkpoint_alignment is not None,
        prefill_checkpoint_alignment=config.checkpoint_alignment,
    )
    builder = cls(spec, ["model.layers.0"], _vllm_config(config), md.query_start_loc.device)
    names = ("num_accepted_tokens", "num_decode_draft_tokens_cpu")
    return builder.build(0, theirs(md), **dict(zip(names, counts, strict=False)))


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
        num_speculative_tokens=drafts,
        num_hash_lookahead_tokens=0,
        use_v2_model_runner=False,
        speculative_config=drafter if drafts else None,
        cache_config=SimpleNamespace(
            mamba_cache_mode=config.mamba_cache_mode,
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
