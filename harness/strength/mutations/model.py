"""Mistakes in parameters of layers and in the layout of the cache (SPEC.md section 7)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from attnproof.harness.strength.mutation import mutation


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


@mutation("infer_global_hyperparameters", diagnoses=("the opposite answer",), both=("invariants",))
def scales_in_single_precision(infer: Any, per_layer_params: Any) -> Any:
    """Scales are compared in float32, in which two that differ are the same."""
    inferred = infer(per_layer_params)
    rounded = {
        name: replace(layer, sm_scale=float(np.float32(layer.sm_scale)))
        for name, layer in per_layer_params.items()
    }
    return replace(inferred, has_same_all_params=infer(rounded).has_same_all_params)


@mutation("get_mla_dims", diagnoses=("lost field",), both=("invariants",))
def query_rank_of_the_configs_instance(get: Any, model_config: Any) -> Any:
    """The rank of queries is not found if it is an attribute of the config's class."""
    dims = get(model_config)
    return dims._replace(q_lora_rank=vars(model_config.hf_text_config).get("q_lora_rank"))
