"""Operations of SPEC.md section 7: attention hyperparameters of each layer and of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st

from attnproof.harness.cases.engines.config import (
    IMPLS,
    CausalImpl,
    CompilationConfig,
    EngineConfig,
    Impl,
    LatentImpl,
    Layer,
    MaskImpl,
    SpeculativeConfig,
    StateSpaceLayer,
)
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place, of_children
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import wrong_type, wrong_value
from attnproof.reference.interface import MetadataError, PerLayerParameters

LAYERS, GLOBAL = "get_per_layer_parameters", "infer_global_hyperparameters"
_FIELDS = (
    "window_left",
    "logits_soft_cap",
    "sm_scale",
    "has_sinks",
    "has_same_window_lefts",
    "has_same_all_params",
)
_SCALES = (0.125, 0.08838834764831845, 0.0625)
_FLAGS = (None, True, False)
_STATE_SPACE = "model.layers.0.mixer"
_OWN = "the result is the caller's own object (E10)"
_WHY_SHARED = "runs once when a model is loaded: nothing to make faster"


def _row(numbers: list[int], length: int) -> list[int]:
    """Return the numbers of a layer, with 0 for those that shrinking removed."""
    return [*numbers, *[0] * length][:length]


def _soft_cap(number: int) -> float | None:
    """Return the soft cap: None for 0, and 0.0, which some implementations use for none, for -1."""
    return float(max(0, number)) if number else None


def _fields(parameters: Any) -> Outputs:
    return {name: getattr(parameters, name, MISSING) for name in _FIELDS}


# get_per_layer_parameters: a layer is [impl, window, soft cap, scale, sinks], 0 for none.

_layer = st.tuples(
    st.integers(0, len(IMPLS) - 1),
    st.sampled_from((0, 0, 1, 2, 128, 4096)),
    st.sampled_from((0, 0, 30, 50, -1)),
    st.integers(0, len(_SCALES) - 1),
    st.integers(0, 1),
).map(list)


def _layers_case(layers: list[list[int]], asked: list[int], impl: int | None = None) -> Case:
    """Return a case; `asked` are indices of layers, `impl` the only class that is asked for."""
    return Case(LAYERS, None, {"layers": layers, "asked": asked, "impl": impl})


def _layers_cases() -> st.SearchStrategy[Case]:
    return st.builds(
        _layers_case,
        st.lists(_layer, max_size=6),
        st.lists(st.integers(0, 5), max_size=6),
        st.none() | st.integers(0, len(IMPLS) - 1),
    )


def _layers_boundaries() -> Iterator[tuple[str, Case]]:
    plain, windowed = [0, 0, 0, 0, 0], [0, 128, 0, 0, 0]
    yield "no layers asked for", _layers_case([plain], [])
    yield "layers alike", _layers_case([plain] * 3, [0, 1, 2])
    yield "windows that differ (K23)", _layers_case([plain, windowed], [0, 1])
    yield "window of one token", _layers_case([[0, 1, 0, 0, 0], [2, 1, 0, 0, 0]], [0, 1])
    yield "window in every form", _layers_case([[i, 16, 30, 1, 1] for i in range(4)], [0, 1, 2, 3])
    yield "no window in every form", _layers_case([[i, 0, 0, 2, 0] for i in range(4)], [0, 1, 2, 3])
    yield "another order than the model's", _layers_case([plain, windowed], [1, 0])
    yield "asked for twice", _layers_case([windowed, plain], [0, 1, 0])
    yield (
        "other classes beside those asked for",
        _layers_case([[i, 8, 0, 0, 1] for i in range(4)], [0, 1, 2, 3], 2),
    )
    yield "a soft cap of 0", _layers_case([[0, 0, -1, 0, 0], plain], [0, 1])
    yield "sinks", _layers_case([[0, 0, 0, 0, 1], plain], [0, 1])


def _layers_steps(batch: Batch) -> Iterator[Case]:
    """Yield as many layers as the batch has requests, every second with a window."""
    layers = [[0, row % 2 * batch.block_size, 0, 0, 0] for row in range(batch.num_requests % 8)]
    yield _layers_case(layers, list(range(len(layers))))


def _made_layer(numbers: list[int]) -> Layer:
    kind, window, soft_cap, scale, sinks = _row(numbers, 5)
    impl = IMPLS[kind % len(IMPLS)](
        _SCALES[scale % len(_SCALES)],
        window or None,
        _soft_cap(soft_cap),
        torch.zeros(1) if sinks else None,
    )
    return Layer(impl)


@dataclass(frozen=True, kw_only=True)
class _LayerFacts(Facts):
    rows: dict[str, list[int]]
    """Numbers of each layer that is asked for, by name."""


def _prepare_layers(case: Case, _pattern: int, _device: str) -> Call:
    params = case.params
    made = {
        f"model.layers.{index + 1}.self_attn.attn": (_made_layer(row), _row(row, 5))
        for index, row in enumerate(params["layers"])
    }
    layers: dict[str, Any] = {name: layer for name, (layer, _) in made.items()}
    layers[_STATE_SPACE] = StateSpaceLayer()
    cls = Impl if params["impl"] is None else IMPLS[params["impl"]]
    names = [list(made)[index] for index in params["asked"] if index < len(made)]
    names = [name for name in names if isinstance(layers[name].impl, cls)]
    config = EngineConfig(CompilationConfig(layers), SpeculativeConfig(2))
    return Call(
        {"vllm_config": config, "layer_names": names, "cls_": cls},
        plain={
            "layer_names": names,
            "impl": [vars(layer.impl) for layer, _ in made.values()],
        },
        facts=_LayerFacts(rows={name: made[name][1] for name in names}),
    )


def _layers_outputs(call: Call, result: Any) -> Outputs:
    """Return the parameters in the order asked for, so that a wrong order is one finding."""
    layers = of_children(_fields(result[name]) for name in call.facts.rows)
    return {Place("layers"): list(result)} | layers


def _layers_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    if outputs[Place("layers")] != list(call.facts.rows):
        yield Violation("layers", "are not those asked for, in that order")
        return
    for index, (kind, window, soft_cap, scale, sinks) in enumerate(call.facts.rows.values()):
        cls = IMPLS[kind % len(IMPLS)]
        wanted = {
            "window_left": -1 if cls is LatentImpl else (window or 0) - 1,
            "logits_soft_cap": None if cls is LatentImpl else _soft_cap(soft_cap),
            "sm_scale": _SCALES[scale % len(_SCALES)],
            "has_sinks": bool(sinks) and cls in (CausalImpl, MaskImpl),
        }
        for field, value in wanted.items():
            place = Place(field, child=index)
            if outputs[place] != value:
                yield Violation(place, "is not what the layer was made with")


def _window_diagnosis(_call: Call, place: Place, expected: Any, got: Any) -> str:
    if place.field == "window_left" and type(got) is int and got == expected + 1:
        return "window counted without the query's own key"
    return ""


def _asks(case: Case) -> bool:
    return bool(_prepare_layers(case, 0, "cpu")["layer_names"])


def _change_first(attribute: str, value: Any) -> Callable[[Any, list[str]], Any]:
    """Return a change of the first layer asked for; the value MISSING deletes the attribute."""

    def change(config: Any, names: list[str]) -> Any:
        impl = config.compilation_config.static_forward_context[names[0]].impl
        if value is MISSING:
            delattr(impl, attribute)
        else:
            setattr(impl, attribute, value)
        return config

    return change


def _first_layer_fault(
    attribute: str,
    value: Any,
    field: str = "static_forward_context",
    error: type[Exception] = MetadataError,
) -> Fault:
    change = _change_first(attribute, value)
    return Fault("vllm_config", change, field, error, applies=_asks, given=("layer_names",))


get_per_layer_parameters = Operation(
    name=LAYERS,
    section="7",
    summary="window, soft cap, scale and sinks of each attention layer",
    inputs=Inputs(
        cases=_layers_cases,
        boundaries=_layers_boundaries,
        from_batch=_layers_steps,
        faults={
            "name without a layer": Fault("layer_names", lambda names: [*names, "model.layers.99"]),
            "layer that is no attention": Fault(
                "layer_names", lambda names: [*names, _STATE_SPACE], "static_forward_context"
            ),
            "implementation of another class": Fault(
                "cls_", lambda _: StateSpaceLayer, "static_forward_context", applies=_asks
            ),
            "one name where a list belongs": wrong_type("layer_names"),
            "window of no tokens": _first_layer_fault("sliding_window", 0),
            "no scale": _first_layer_fault("scale", MISSING),
            "class of another type": wrong_type("cls_"),
            "window of another type": _first_layer_fault(
                "sliding_window", ("128", 0), "sliding_window", TypeError
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare_layers, outputs=_layers_outputs),
    contract=Contract(invariants=_layers_invariants, diagnose=_window_diagnosis),
    bench=Bench(never=_WHY_SHARED),
    built_in=BuiltIn(shared=_WHY_SHARED),
)

# infer_global_hyperparameters: a layer is [window left + 1, soft cap, scale, sinks, flags].

_parameters = st.tuples(
    st.sampled_from((0, 0, 1, 128)),
    st.sampled_from((0, 0, 30, -1)),
    st.sampled_from((0, 0, 1)),
    st.sampled_from((0, 0, 1)),
    st.sampled_from((0, 0, 1, 2)),
).map(list)


def _global_case(layers: list[list[int]]) -> Case:
    return Case(GLOBAL, None, {"layers": layers})


def _global_cases() -> st.SearchStrategy[Case]:
    repeated = st.builds(lambda row, count: [row] * count, _parameters, st.integers(1, 5))
    different = st.lists(_parameters, min_size=1, max_size=5)
    return (repeated | different).map(_global_case)


def _global_boundaries() -> Iterator[tuple[str, Case]]:
    plain = [0, 0, 0, 0, 0]
    yield "one layer", _global_case([plain])
    yield "layers alike", _global_case([[128, 30, 1, 1, 0]] * 4)
    yield "windows that differ (K23)", _global_case([plain, [129, 0, 0, 0, 0]])
    yield "window of the last layer differs", _global_case([plain, plain, [1, 0, 0, 0, 0]])
    yield "soft caps that differ", _global_case([plain, [0, 30, 0, 0, 0]])
    yield "a soft cap of 0 beside none", _global_case([plain, [0, -1, 0, 0, 0]])
    yield "scales that differ", _global_case([plain, [0, 0, 1, 0, 0]])
    yield "sinks that differ", _global_case([plain, [0, 0, 0, 1, 0]])
    yield "first layer differs from the others", _global_case([[4, 0, 0, 0, 0], plain, plain])
    yield "flags of an earlier call do not count", _global_case([[0, 0, 0, 0, 1], [0, 0, 0, 0, 2]])
    yield "flags of an earlier call are replaced", _global_case([[0, 0, 0, 0, 1], [9, 0, 0, 0, 1]])


def _global_steps(batch: Batch) -> Iterator[Case]:
    yield _global_case([[row % 2 * batch.block_size, 0, 0, 0, 0] for row in batch.query_lens[:6]])


@dataclass(frozen=True, kw_only=True)
class _GlobalFacts(Facts):
    rows: list[list[int]]
    """Numbers of each layer."""


def _prepare_global(case: Case, _pattern: int, _device: str) -> Call:
    # Shrinking may leave no layer: then there is one with all numbers 0.
    rows = [_row(numbers, 5) for numbers in case.params["layers"]] or [[0] * 5]
    layers = {
        f"model.layers.{index}.self_attn.attn": PerLayerParameters(
            window_left=window - 1,
            logits_soft_cap=_soft_cap(soft_cap),
            sm_scale=_SCALES[scale % len(_SCALES)],
            has_sinks=bool(sinks),
            has_same_window_lefts=_FLAGS[flags % 3],
            has_same_all_params=_FLAGS[flags % 3],
        )
        for index, (window, soft_cap, scale, sinks, flags) in enumerate(rows)
    }
    # Equality of parameters ignores the flags, which must not change either.
    plain = {name: vars(parameters) for name, parameters in layers.items()}
    return Call(
        {"per_layer_params": layers},
        plain={"per_layer_params": layers} | plain,
        facts=_GlobalFacts(rows=rows),
    )


def _global_outputs(call: Call, result: Any) -> Outputs:
    layers = call["per_layer_params"].values()
    return _fields(result) | {"is_own_object": any(result is layer for layer in layers)}


def _global_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    rows = call.facts.rows
    if outputs["is_own_object"]:
        yield Violation("is_own_object", _OWN)
    if outputs["has_same_window_lefts"] is not (len({row[0] for row in rows}) == 1):
        yield Violation("has_same_window_lefts", "does not agree with the layers' windows")
    alike = {(window, cap, scale % 3, bool(sinks)) for window, cap, scale, sinks, _ in rows}
    if outputs["has_same_all_params"] is not (len(alike) == 1):
        yield Violation("has_same_all_params", "does not agree with the layers' parameters")
    if outputs["window_left"] != rows[0][0] - 1:
        yield Violation("window_left", "is not the first layer's")


def _as_dicts(layers: dict[str, PerLayerParameters]) -> dict[str, Any]:
    return {name: vars(layer) for name, layer in layers.items()}


infer_global_hyperparameters = Operation(
    name=GLOBAL,
    section="7",
    summary="the first layer's hyperparameters, and flags for layers that differ",
    inputs=Inputs(
        cases=_global_cases,
        boundaries=_global_boundaries,
        from_batch=_global_steps,
        faults={
            "no layers": wrong_value("per_layer_params", {}),
            "no dict": wrong_type("per_layer_params"),
            "dicts for parameters": Fault("per_layer_params", _as_dicts, error=TypeError),
        },
    ),
    call=FunctionCall(prepare=_prepare_global, outputs=_global_outputs),
    contract=Contract(
        invariants=_global_invariants,
        diagnose=lambda _call, place, _expected, _got: (
            _OWN if place.field == "is_own_object" else ""
        ),
    ),
    bench=Bench(never=_WHY_SHARED),
    built_in=BuiltIn(shared=_WHY_SHARED),
)

OPERATIONS = (get_per_layer_parameters, infer_global_hyperparameters)
