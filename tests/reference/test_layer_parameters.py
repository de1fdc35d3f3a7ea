"""Tests of hyperparameters of single and all layers, and of latent attention's dimensions."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.cases.engines.config import (
    CausalImpl,
    CompilationConfig,
    EncoderImpl,
    EngineConfig,
    Impl,
    LatentImpl,
    Layer,
    MaskImpl,
    ModelConfig,
    StateSpaceLayer,
    TextConfig,
)
from attnproof.reference import MetadataError, PerLayerParameters


def config(**layers):
    return EngineConfig(CompilationConfig({"mixer": StateSpaceLayer(), **layers}))


def test_each_layer_in_the_order_asked_for(package):
    made = config(a=Layer(CausalImpl(0.5, 128, 30.0)), b=Layer(CausalImpl(0.25)))
    assert package.get_per_layer_parameters(made, ["b", "a"], CausalImpl) == {
        "b": PerLayerParameters(-1, None, 0.25),
        "a": PerLayerParameters(127, 30.0, 0.5),
    }
    assert list(package.get_per_layer_parameters(made, ["b", "a"], Impl)) == ["b", "a"]
    assert package.get_per_layer_parameters(made, [], Impl) == {}


@pytest.mark.parametrize(
    ("impl", "window", "left"),
    [
        (CausalImpl, None, -1),
        (CausalImpl, 16, 15),
        (EncoderImpl, None, -1),
        (EncoderImpl, 16, 15),
        (MaskImpl, None, -1),
        (LatentImpl, 16, -1),
    ],
)
def test_window_in_the_forms_that_implementations_have(package, impl, window, left):
    made = config(a=Layer(impl(1.0, window)))
    assert package.get_per_layer_parameters(made, ["a"], Impl)["a"].window_left == left


@pytest.mark.spec("E19: published code subscripts the number")
def test_window_as_a_number_of_tokens(package):
    made = config(a=Layer(MaskImpl(1.0, 16)), b=Layer(MaskImpl(1.0, 1)))
    parameters = package.get_per_layer_parameters(made, ["a", "b"], Impl)
    assert [layer.window_left for layer in parameters.values()] == [15, 0]


def test_has_sinks_if_sinks_are_set(package):
    made = config(a=Layer(CausalImpl(1.0, sinks=object())), b=Layer(CausalImpl(1.0)))
    parameters = package.get_per_layer_parameters(made, ["a", "b"], Impl)
    assert [layer.has_sinks for layer in parameters.values()] == [True, False]


@pytest.mark.parametrize(
    ("names", "cls", "message"),
    [
        (["a", "z"], Impl, r"layer_names\[1\] is 'z', expected a layer of static_forward_context"),
        (["a"], MaskImpl, r"static_forward_context\['a'\].impl is a CausalImpl, expected a MaskI"),
        (["mixer"], Impl, r"static_forward_context\['mixer'\].impl is a NoneType, expected a Impl"),
    ],
)
def test_malformed_layers_are_errors(package, names, cls, message):
    with pytest.raises(MetadataError, match=message):
        package.get_per_layer_parameters(config(a=Layer(CausalImpl(1.0))), names, cls)


@pytest.mark.parametrize("window", [0, -1, (), ("1", 0), 1.5])
def test_malformed_windows_are_errors(package, window):
    impl = MaskImpl(1.0, window)
    with pytest.raises((MetadataError, TypeError), match=r"\['a'\].impl.sliding_window is"):
        package.get_per_layer_parameters(config(a=Layer(impl)), ["a"], Impl)


def test_a_single_name_is_an_error(package):
    with pytest.raises(TypeError, match="layer_names is str"):
        package.get_per_layer_parameters(config(a=Layer(CausalImpl(1.0))), "a", Impl)


@pytest.mark.spec("E10: published code sets the flags on the caller's own object")
def test_flags_are_those_of_a_new_object(package):
    layers = {"a": PerLayerParameters(-1, None, 1.0), "b": PerLayerParameters(127, None, 1.0)}
    made = package.infer_global_hyperparameters(layers)
    assert (made.has_same_window_lefts, made.has_same_all_params) == (False, False)
    assert made == layers["a"]
    assert made is not layers["a"]
    assert layers["a"].has_same_window_lefts is None


@pytest.mark.spec("E48: 0.10.2 knows no flags, and layers that differ are an error there")
@pytest.mark.parametrize(
    ("other", "windows", "everything"),
    [
        (PerLayerParameters(7, 30.0, 0.5, True), True, True),
        (PerLayerParameters(8, 30.0, 0.5, True), False, False),
        (PerLayerParameters(7, None, 0.5, True), True, False),
        (PerLayerParameters(7, 30.0, 0.25, True), True, False),
        (PerLayerParameters(7, 30.0, 0.5, False), True, False),
        (PerLayerParameters(7, 30.0, 0.5, True, False, False), True, True),
    ],
)
def test_flags_of_layers_that_differ(package, other, windows, everything):
    first = PerLayerParameters(7, 30.0, 0.5, True)
    made = package.infer_global_hyperparameters({"a": first, "b": first, "c": other})
    assert (made.has_same_window_lefts, made.has_same_all_params) == (windows, everything)


def test_global_parameters_need_layers(package):
    with pytest.raises(MetadataError, match="per_layer_params is empty, expected at least one"):
        package.infer_global_hyperparameters({})
    with pytest.raises(TypeError, match="per_layer_params is list"):
        package.infer_global_hyperparameters([])
    with pytest.raises(TypeError, match=r"per_layer_params\['a'\] is dict"):
        package.infer_global_hyperparameters({"a": {}})


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 96}


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": None}, {"q_lora_rank": 1536}])
def test_dimensions_of_latent_attention(package, changes):
    dims = package.get_mla_dims(ModelConfig(TextConfig(hidden_size=7168, **LATENT, **changes)))
    assert dims == (changes.get("q_lora_rank"), 512, 128, 64, 96)
    assert type(dims) is reference.MLADims


@pytest.mark.parametrize("name", LATENT)
def test_models_without_latent_attention(package, name):
    without = {key: value for key, value in LATENT.items() if key != name}
    with pytest.raises(MetadataError, match=f"get_mla_dims: {name} is missing"):
        package.get_mla_dims(ModelConfig(TextConfig(**without)))
    with pytest.raises(MetadataError, match=f"{name} is 0, expected at least 1"):
        package.get_mla_dims(ModelConfig(TextConfig(**LATENT | {name: 0})))
    with pytest.raises(TypeError, match=f"{name} is float"):
        package.get_mla_dims(ModelConfig(TextConfig(**LATENT | {name: 64.0})))
