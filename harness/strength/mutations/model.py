"""Mistakes in parameters of layers and in the layout of the cache (SPEC.md section 7)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from attnproof.harness.strength.mutation import mutation


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
