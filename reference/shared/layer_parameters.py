"""Attention hyperparameters of each layer, of all layers, and of latent attention.

SPEC.md section 7. Both packages share these functions, which run once per model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ..checks.common import check_int
from ..interface.errors import MetadataError
from ..interface.metadata import MLADims, PerLayerParameters
from ..interface.protocols import ModelConfig, VllmConfig

_NO_WINDOW: Final = -1


def get_per_layer_parameters(
    vllm_config: VllmConfig, layer_names: list[str], cls_: type[Any]
) -> dict[str, PerLayerParameters]:
    """Return the hyperparameters of the named attention layers, in the order of the names.

    Each is read from `static_forward_context[name].impl`; other layers are not read.
    Raise MetadataError for a name without a layer, a layer without an impl, an impl that
    is not a `cls_` and an impl without a scale; TypeError for a window of another form.
    SPEC.md section 7.
    """
    operation = "get_per_layer_parameters"
    if not isinstance(layer_names, Iterable) or isinstance(layer_names, str):
        got = type(layer_names).__name__
        raise TypeError(f"{operation}: layer_names is {got}, expected a list of str")
    if not isinstance(cls_, type):
        raise TypeError(f"{operation}: cls_ is {cls_!r}, expected a class")
    layers = vllm_config.compilation_config.static_forward_context
    parameters = {}
    for index, name in enumerate(layer_names):
        if name not in layers:
            expected = "a layer of static_forward_context"
            raise MetadataError(operation, f"layer_names[{index}]", repr(name), expected)
        impl = getattr(layers[name], "impl", None)
        if not isinstance(impl, cls_):
            field = f"static_forward_context[{name!r}].impl"
            raise MetadataError(operation, field, f"a {type(impl).__name__}", f"a {cls_.__name__}")
        parameters[name] = PerLayerParameters(
            window_left=_window_left(operation, name, getattr(impl, "sliding_window", None)),
            logits_soft_cap=getattr(impl, "logits_soft_cap", None),
            sm_scale=_scale(operation, name, impl),
            has_sinks=getattr(impl, "sinks", None) is not None,
        )
    return parameters


def _scale(operation: str, name: str, impl: object) -> float:
    scale: float | None = getattr(impl, "scale", None)
    if scale is None:
        field = f"static_forward_context[{name!r}].impl.scale"
        raise MetadataError(operation, field, None, "a number")
    return scale


def _window_left(operation: str, name: str, window: object) -> int:
    """Return the number of keys visible to the left of a query's own key, -1 for all."""
    field = f"static_forward_context[{name!r}].impl.sliding_window"
    if window is None:
        return _NO_WINDOW
    if isinstance(window, (tuple, list)):
        left = window[0] if window else None
        if type(left) is not int:
            raise TypeError(f"{operation}: {field} is {window!r}, expected (left, right) or None")
        return left
    check_int(operation, field, window, 1)
    assert isinstance(window, int)  # for the type checker
    return window - 1  # an integer window includes the query's own key


def infer_global_hyperparameters(
    per_layer_params: Mapping[str, PerLayerParameters],
) -> PerLayerParameters:
    """Return the first layer's hyperparameters with two flags: True if all layers agree.

    The result is a new object; the arguments do not change (erratum E10). Differing layers
    are not an error. Raise MetadataError without layers. SPEC.md section 7.
    """
    operation = "infer_global_hyperparameters"
    if not isinstance(per_layer_params, Mapping):
        got = type(per_layer_params).__name__
        raise TypeError(f"{operation}: per_layer_params is {got}, expected a dict")
    layers = list(per_layer_params.values())
    for name, layer in per_layer_params.items():
        if not isinstance(layer, PerLayerParameters):
            field, got = f"per_layer_params[{name!r}]", type(layer).__name__
            raise TypeError(f"{operation}: {field} is {got}, expected PerLayerParameters")
    if not layers:
        raise MetadataError(operation, "per_layer_params", "empty", "at least one layer")
    first = layers[0]
    return replace(
        first,
        has_same_window_lefts=all(layer.window_left == first.window_left for layer in layers),
        has_same_all_params=all(layer == first for layer in layers),
    )


def get_mla_dims(model_config: ModelConfig) -> MLADims:
    """Return the dimensions of multi-head latent attention in `model_config.hf_text_config`.

    `q_lora_rank` is None if the model does not compress its queries. Raise MetadataError
    if another dimension is missing or below 1: the model has no latent attention.
    SPEC.md section 7.
    """
    operation, config = "get_mla_dims", model_config.hf_text_config
    dims = {name: getattr(config, name, None) for name in MLADims._fields}
    for name, value in dims.items():
        if value is not None:
            check_int(operation, name, value, 1)
        elif name != "q_lora_rank":
            raise MetadataError(operation, name, "missing", "a dimension of latent attention")
    return MLADims(**dims)  # type: ignore[arg-type]  # only q_lora_rank may be None
