"""Mistakes in parameters of layers and in the layout of the cache (SPEC.md section 7)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from attnproof.harness.strength.mutation import mutation

_LAYERS, _GLOBAL = "get_per_layer_parameters", "infer_global_hyperparameters"


@mutation(
    "infer_global_hyperparameters",
    "K23",
    source="vllm-project/vllm#25924",
    diagnoses=("raises AssertionError on good input",),
    one=("errors",),
)
def windows_asserted(infer: Any, per_layer_params: Any) -> Any:
    """Layers with different windows fail an assertion instead of setting a flag."""
    made = infer(per_layer_params)
    assert made.has_same_window_lefts, "all layers must have the same window"
    return made


@mutation(
    "layout_sequence",
    "K27",
    source="erratum E9",
    part="get_kv_cache_layout",
    diagnoses=("an earlier answer was kept",),
    one=("sequences",),
    both=(),
)
@lru_cache
def cached_layout(get: Any) -> Any:
    """The first answer is kept, so that a layout that is set later is ignored."""
    return get()


@mutation(_LAYERS, diagnoses=("off by one token", "the opposite answer"), both=("invariants",))
def attributes_of_instances_only(get: Any, vllm_config: Any, names: Any, cls: Any) -> Any:
    """Properties of an implementation and attributes of its class are not read."""
    parameters = get(vllm_config, names, cls)
    layers = vllm_config.compilation_config.static_forward_context
    for name, found in parameters.items():
        own = vars(layers[name].impl)
        parameters[name] = replace(
            found,
            window_left=found.window_left if "sliding_window" in own else -1,
            logits_soft_cap=own.get("logits_soft_cap"),
            has_sinks=own.get("sinks") is not None,
        )
    return parameters


@mutation(
    _LAYERS,
    diagnoses=(
        "window counted without the query's own key",
        "lost field",
        "the opposite answer",
        "field that should not be set",
    ),
    both=("invariants",),
)
def layers_of_one_number(get: Any, vllm_config: Any, names: Any, cls: Any) -> Any:
    """Layers with the same class and number have the window, soft cap and sinks of the first."""
    parameters = get(vllm_config, names, cls)
    layers = vllm_config.compilation_config.static_forward_context
    first: dict[Any, Any] = {}
    for name, found in parameters.items():
        number = re.search(r"layers\.(\d+)\.", name)
        key = type(layers[name].impl), number and number[1]
        parameters[name] = replace(first.setdefault(key, found), sm_scale=found.sm_scale)
    return parameters


@mutation(_GLOBAL, diagnoses=("the opposite answer",), both=("invariants",))
def scales_in_single_precision(infer: Any, per_layer_params: Any) -> Any:
    """Scales are compared in float32, in which two that differ are the same."""
    made = infer(per_layer_params)
    rounded = {
        name: replace(layer, sm_scale=float(np.float32(layer.sm_scale)))
        for name, layer in per_layer_params.items()
    }
    return replace(made, has_same_all_params=infer(rounded).has_same_all_params)


@mutation("get_mla_dims", diagnoses=("lost field",), both=("invariants",))
def query_rank_of_the_configs_instance(get: Any, model_config: Any) -> Any:
    """The rank of queries is not found if it is an attribute of the config's class."""
    dims = get(model_config)
    return dims._replace(q_lora_rank=vars(model_config.hf_text_config).get("q_lora_rank"))
