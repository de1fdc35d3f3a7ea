"""Results that share an object, or that are remembered by the object they were made of."""

from functools import lru_cache

from attnproof.reference import get_mla_dims as right_dims
from attnproof.reference import get_per_layer_parameters as right_parameters
from attnproof.reference.interface import PerLayerParameters

_last = {}


@lru_cache
def _made(window_left, logits_soft_cap, sm_scale, has_sinks):
    return PerLayerParameters(window_left, logits_soft_cap, sm_scale, has_sinks)


def get_per_layer_parameters(vllm_config, layer_names, cls_):
    layers = right_parameters(vllm_config, layer_names, cls_)
    names = ("window_left", "logits_soft_cap", "sm_scale", "has_sinks")
    return {layer: _made(*(getattr(own, name) for name in names)) for layer, own in layers.items()}


def get_mla_dims(model_config):
    if _last.get("config") is not model_config:
        _last.update(config=model_config, dims=right_dims(model_config))
    return _last["dims"]
