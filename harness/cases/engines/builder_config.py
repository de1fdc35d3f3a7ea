"""Stand-ins for the configs that an engine gives a metadata builder."""

from __future__ import annotations

import importlib
import inspect
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

import torch

from attnproof.harness.model.candidate import NotProvidedError


class StandIn:
    """Object with some attributes of an engine's config.

    Any other one has the default of the installed engine's class, or is an error that says so.
    """

    def __init__(self, title: str, **attributes: Any) -> None:
        self._title = title
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        title = vars(self)["_title"]
        if _defaults(name):
            return StandIn(name)
        if name in _defaults(title):
            return _defaults(title)[name]
        raise NotProvidedError(
            f"the stand-in for {title} has no {name}: instantiate the builder by `new` in a table "
            f"[builders.NAME], with a config of your own"
        )


@cache
def _defaults(title: str) -> dict[str, Any]:
    """Return the defaults of the installed engine's class of a config, {} without one."""
    name = "".join(word.capitalize() for word in title.split("_"))
    try:
        cls = getattr(importlib.import_module("vllm.config"), name)
        return {field.name: _default(field) for field in fields(cls)}
    except (ImportError, AttributeError, TypeError):
        return {}


def _default(field: Any) -> Any:
    """Return the default of a field of a dataclass, or of pydantic's kind of dataclass."""
    if hasattr(field.default, "get_default"):
        return field.default.get_default(call_default_factory=True)
    return field.default if field.default_factory is MISSING else field.default_factory()


_HEADS, _KV_HEADS, _HEAD_SIZE, _MOST_LENGTH = 32, 8, 128, 131072
_DTYPE = torch.bfloat16
_SPEC_MODULE = "vllm.v1.kv_cache_interface"


def engine_config(block_size: int, most_rows: int, most_tokens: int) -> StandIn:
    """Return a config of a model with 32 heads, 8 of them of keys, on one device."""
    text = StandIn(
        "hf_text_config",
        model_type="llama",
        num_attention_heads=_HEADS,
        num_key_value_heads=_KV_HEADS,
        hidden_size=_HEADS * _HEAD_SIZE,
        sliding_window=None,
    )
    return StandIn(
        "vllm_config",
        model_config=StandIn(
            "model_config",
            dtype=_DTYPE,
            max_model_len=_MOST_LENGTH,
            hf_config=text,
            hf_text_config=text,
            architectures=["LlamaForCausalLM"],
            rswa_window=None,
            is_mm_prefix_lm=False,
            is_hybrid=False,
            is_diffusion=False,
            is_encoder_decoder=False,
            use_mla=False,
            get_num_attention_heads=lambda _parallel=None: _HEADS,
            get_num_kv_heads=lambda _parallel=None: _KV_HEADS,
            get_head_size=lambda: _HEAD_SIZE,
            get_sliding_window=lambda: None,
        ),
        parallel_config=StandIn(
            "parallel_config",
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            cp_kv_cache_interleave_size=1,
            dcp_kv_cache_interleave_size=1,
            dcp_comm_backend="ag_rs",
            enable_dbo=False,
            use_ubatching=False,
            num_ubatches=1,
        ),
        scheduler_config=StandIn(
            "scheduler_config",
            max_num_seqs=most_rows,
            max_num_batched_tokens=most_tokens,
            max_model_len=_MOST_LENGTH,
            enable_chunked_prefill=True,
            chunked_prefill_enabled=True,
            async_scheduling=False,
        ),
        cache_config=StandIn(
            "cache_config",
            block_size=block_size,
            cache_dtype="auto",
            num_gpu_blocks=None,
            enable_prefix_caching=True,
            kv_cache_layout=None,
            mamba_cache_mode="none",
            mamba_block_size=None,
            use_replayssm=False,
        ),
        compilation_config=StandIn(
            "compilation_config",
            cudagraph_mode=_graph_mode(),
            cudagraph_capture_sizes=[1, 2, 4, 8, 16, 32],
            max_cudagraph_capture_size=most_tokens,
            max_capture_size=most_tokens,
            full_cuda_graph=True,
            static_forward_context={},
        ),
        attention_config=StandIn(
            "attention_config",
            backend=None,
            flash_attn_version=None,
            flex_attn_q_block_size=None,
            flex_attn_kv_block_size=None,
            flash_attn_max_num_splits_for_cuda_graph=32,
            use_non_causal=False,
            disable_flashinfer_q_quantization=False,
            hisparse_config=None,
        ),
        kernel_config=StandIn("kernel_config", enable_jit_warmup=False),
        speculative_config=None,
        num_speculative_tokens=0,
        kv_transfer_config=None,
        lora_config=None,
    )


def _graph_mode() -> Any:
    """Return the mode of full graphs of the engine that is installed, else a stand-in for it."""
    with suppress(ImportError, AttributeError):
        mode = importlib.import_module("vllm.config").CUDAGraphMode.FULL
        if hasattr(mode, "has_full_cudagraphs"):  # not that of a stub
            return mode
    return StandIn(
        "cudagraph_mode",
        value=2,
        has_full_cudagraphs=lambda: True,
        decode_mode=_graph_mode,
        mixed_mode=_graph_mode,
    )


def kv_cache_spec(block_size: int) -> Any:
    """Return the spec of full attention: of the engine's class, else a stand-in for it."""
    values = {
        "block_size": block_size,
        "num_kv_heads": _KV_HEADS,
        "head_size": _HEAD_SIZE,
        "dtype": _DTYPE,
        "use_mla": False,
        "sliding_window": None,
        "dcp_sharded": True,
        "head_size_v": _HEAD_SIZE,
    }
    with suppress(ImportError, AttributeError, TypeError, ValueError):
        cls = importlib.import_module(_SPEC_MODULE).FullAttentionSpec
        taken = inspect.signature(cls).parameters
        spec = cls(**{name: value for name, value in values.items() if name in taken})
        for name, value in values.items():
            if not hasattr(spec, name):  # of a stub
                setattr(spec, name, value)
        return spec
    return StandIn("kv_cache_spec", **values)
