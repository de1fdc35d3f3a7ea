"""vLLM's functions under our names; arguments are converted before the clock starts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.adapters.vllm.installed import find
from attnproof.harness.adapters.vllm.metadata import CONVERSION, UTILS, theirs
from attnproof.harness.interfaces import functions as interface
from attnproof.harness.running.engines import V0_UTILS

Adapted = partial(interface.Adapted, conversion=CONVERSION)
"""Function of vLLM that takes our arguments and returns our results."""
First = partial(interface.First, conversion=CONVERSION)
"""Function of vLLM whose result begins with a batch."""


def _as_layers(vllm_config: Any, layer_names: Any, cls_: Any) -> Any:
    """Convert to a config whose layers are instances of the class that vLLM looks up."""
    context = vllm_config.compilation_config.static_forward_context
    layers = {name: _as_layer(layer) for name, layer in context.items()}
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    return (config, layer_names, cls_), {}


def _as_layer(layer: Any) -> Any:
    impl = getattr(layer, "impl", None)
    if impl is None:
        return layer
    base = find((UTILS,), "AttentionLayerBase") or find((UTILS,), "Attention")
    cls = type("Layer", (base,), {})
    cls.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    engine_layer: Any = object.__new__(cls)
    if find((UTILS,), "find_attention_impl_variant") is not None:
        impl = SimpleNamespace(get_impl_variants=lambda: (layer.impl,))
    engine_layer.__dict__["impl"] = impl
    return engine_layer


class _EncoderMetadata:
    """V0 metadata with the property of vLLM's classes for a complete encoder part."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata

    def __getattr__(self, name: str) -> Any:
        return getattr(self._metadata, name)

    @property
    def is_all_encoder_attn_metadata_set(self) -> Any:
        """True if vLLM's own function finds the encoder part complete."""
        answer = find((V0_UTILS,), "is_all_encoder_attn_metadata_set")
        return answer(self._metadata)


def cross_attention(function: Callable[..., Any]) -> interface.Adapted:
    """Adapt `is_all_cross_attn_metadata_set`, which reads a property of the metadata."""
    return Adapted(function, convert=lambda metadata: ((_EncoderMetadata(metadata),), {}))


def layout_reader(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `get_kv_cache_layout`, and set the config of an engine without a connector."""
    # Without a config vLLM would make a whole one first, which needs a device.
    current = find(("config",), "get_current_vllm_config")
    home = sys.modules[current.__module__]
    if home._current_vllm_config is None:
        home._current_vllm_config = SimpleNamespace(kv_transfer_config=None)  # type: ignore[attr-defined]
    return function


def split(function: Callable[..., Any]) -> interface.Adapted:
    """Adapt `split_decodes_and_prefills`; versions without its flag do not get it."""
    if "require_uniform" in function.__code__.co_varnames:
        return Adapted(function)

    def without_uniform(metadata: Any, decode_threshold: Any = 1, *uniform: Any) -> Any:
        flags = [flag for flag in uniform if flag is not False]
        return (theirs(metadata), decode_threshold, *flags), {}

    return Adapted(function, convert=without_uniform)


def reorder(function: Callable[..., Any]) -> interface.Adapted:
    """Adapt `reorder_batch_to_split_decodes_and_prefills` of any version."""
    return Adapted(function, convert=interface.with_progress)


def conv1d(function: Callable[..., Any]) -> interface.Adapted:
    """Adapt `compute_causal_conv1d_metadata` of any version."""
    lengths_first = "query_start_loc_p_cpu" in function.__code__.co_varnames
    return (
        Adapted(function, convert=interface.offsets_on_cpu) if lengths_first else Adapted(function)
    )


def layers(function: Callable[..., Any]) -> interface.Adapted:
    """Adapt `get_per_layer_parameters` of any version."""
    return Adapted(function, convert=_as_layers)


def state_blocks(function: Callable[..., Any]) -> interface.Adapted:
    """Adapt `mamba_get_block_table_tensor`, which wants a spec of vLLM's own class."""
    spec_class = find(("v1.kv_cache_interface",), "MambaSpec")

    def convert(block_table: Any, seq_lens: Any, kv_cache_spec: Any, mamba_cache_mode: Any) -> Any:
        sizes = vars(kv_cache_spec)
        spec = spec_class(shapes=(), dtypes=(), mamba_cache_mode=mamba_cache_mode, **sizes)
        return (block_table, seq_lens, spec, mamba_cache_mode), {}

    return Adapted(function, convert=convert)


def prefill_checkpoints(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `compute_mamba_prefill_checkpoints`; releases before 0.33 get no lookahead."""
    if "num_hash_lookahead_tokens" in function.__code__.co_varnames:
        return function
    return lambda *args, **_: function(*args[:7])


def global_indices(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Return the conversion of selected keys, whose names are those of the kernel."""

    def converted(
        req_id: torch.Tensor,
        block_table: torch.Tensor,
        token_indices: torch.Tensor,
        block_size: int,
        block_stride_rows: int,
        dcp_size: int = 1,
        dcp_rank: int = 0,
        cp_kv_cache_interleave_size: int = 1,
    ) -> Any:
        columns = token_indices.shape[1]
        return convert(
            req_id,
            block_table,
            token_indices,
            BLOCK_SIZE=block_size,
            BLOCK_STRIDE_ROWS=block_stride_rows,
            NUM_TOPK_TOKENS=columns,
            BLOCK_N=min(128, columns & -columns or 1),  # a power of two that divides the columns
            dcp_size=dcp_size,
            dcp_rank=dcp_rank,
            cp_kv_cache_interleave_size=cp_kv_cache_interleave_size,
        )

    return converted
