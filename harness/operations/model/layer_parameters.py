"""Operation of SPEC.md section 7: the attention hyperparameters of each layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import nextafter
from typing import Annotated, Any

import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.engines.config import (
    IMPLS,
    CausalImpl,
    CompilationConfig,
    DerivedImpl,
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
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.params import MOST_STEPS, Counts, Params
from attnproof.reference.interface import MetadataError

NAME = "get_per_layer_parameters"
_FIELDS = (
    "window_left",
    "logits_soft_cap",
    "sm_scale",
    "has_sinks",
    "has_same_window_lefts",
    "has_same_all_params",
)
SCALES = (0.125, 0.08838834764831845, 0.0625, nextafter(0.125, 1.0))
"""Scales of layers; the first and the last differ in the last bit of a double."""
_STATE_SPACE = "model.layers.0.mixer"
WHY_SHARED = "runs once when a model is loaded: nothing to make faster"


def layer_numbers(numbers: list[int], length: int) -> list[int]:
    """Return `length` numbers of a layer, with 0 for those that shrinking removed."""
    return [*numbers, *[0] * length][:length]


def soft_cap_of(number: int) -> float | None:
    """Return the soft cap: None for 0, and 0.0 for -1."""
    # Some implementations use 0.0 for no soft cap.
    return float(max(0, number)) if number else None


def parameter_outputs(parameters: Any) -> Outputs:
    """Return the fields of `PerLayerParameters` by name."""
    return {name: getattr(parameters, name, MISSING) for name in _FIELDS}


# A layer is [impl, window, soft cap, scale, sinks], 0 for none.
_layer = st.tuples(
    st.integers(0, len(IMPLS) - 1),
    st.sampled_from((0, 0, 1, 2, 128, 4096)),
    st.sampled_from((0, 0, 30, 50, -1)),
    st.integers(0, len(SCALES) - 1),
    st.integers(0, 1),
).map(list)


Layers = Annotated[
    list[Annotated[list[Annotated[int, Meta(ge=-1, le=2**31 - 1)]], Meta(max_length=5)]],
    Meta(max_length=MOST_STEPS),
]
"""Numbers of each layer; missing ones are 0, and only a soft cap may be -1."""


def soft_cap_problem(layers: list[list[int]], place: int) -> str:
    """Return the problem of a negative number that is no soft cap; `place` is that of soft caps."""
    wrong = any(min([0, *numbers[:place], *numbers[place + 1 :]]) < 0 for numbers in layers)
    return "layers: only a soft cap can be -1" if wrong else ""


class _Params(Params):
    layers: Layers
    asked: Counts
    impl: Annotated[int, Meta(ge=0, le=len(IMPLS) - 1)] | None


def _problem(case: Case) -> str:
    return soft_cap_problem(case.params["layers"], 2)


def _case(layers: list[list[int]], asked: list[int], impl: int | None = None) -> Case:
    """Return a case; `asked` indexes the layers of the call, `impl` the class of the call."""
    return Case(NAME, None, {"layers": layers, "asked": asked, "impl": impl})


def _cases() -> st.SearchStrategy[Case]:
    return st.builds(
        _case,
        st.lists(_layer, max_size=6),
        st.lists(st.integers(0, 5), max_size=6),
        st.none() | st.integers(0, len(IMPLS) - 1),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    plain, windowed = [0, 0, 0, 0, 0], [0, 128, 0, 0, 0]
    yield "no layers asked for", _case([plain], [])
    yield "layers alike", _case([plain] * 3, [0, 1, 2])
    yield "windows that differ (K23)", _case([plain, windowed], [0, 1])
    yield "window of one token", _case([[0, 1, 0, 0, 0], [2, 1, 0, 0, 0]], [0, 1])
    yield (
        "window in every form",
        _case([[i, 16, 30, 1, 1] for i in range(len(IMPLS))], [*range(len(IMPLS))]),
    )
    yield (
        "no window in every form",
        _case([[i, 0, 0, 2, 0] for i in range(len(IMPLS))], [*range(len(IMPLS))]),
    )
    yield "another order than the model's", _case([plain, windowed], [1, 0])
    yield "asked for twice", _case([windowed, plain], [0, 1, 0])
    yield (
        "other classes beside those asked for",
        _case([[i, 8, 0, 0, 1] for i in range(len(IMPLS))], [*range(len(IMPLS))], 2),
    )
    yield "a soft cap of 0", _case([[0, 0, -1, 0, 0], plain], [0, 1])
    yield "sinks", _case([[0, 0, 0, 0, 1], plain], [0, 1])


def _steps(batch: Batch) -> Iterator[Case]:
    """Yield as many layers as the batch has requests, every second with a window."""
    layers = [[0, row % 2 * batch.block_size, 0, 0, 0] for row in range(batch.num_requests % 8)]
    yield _case(layers, list(range(len(layers))))


def _made_layer(numbers: list[int]) -> Layer:
    kind, window, soft_cap, scale, sinks = layer_numbers(numbers, 5)
    impl = IMPLS[kind % len(IMPLS)](
        SCALES[scale % len(SCALES)],
        window or None,
        soft_cap_of(soft_cap),
        torch.zeros(1) if sinks else None,
    )
    return Layer(impl)


def _is_hybrid(case: Case) -> bool:
    """True if the model has a layer without attention beside the others."""
    return len(case.params["layers"]) % 2 == 1


def _layer_name(index: int) -> str:
    """Return the name of a layer, of which two have one number, as in a decoder with an encoder."""
    return f"model.layers.{index // 2 + 1}.{('self', 'cross')[index % 2]}_attn.attn"


@dataclass(frozen=True, kw_only=True)
class _LayerFacts(Facts):
    rows: dict[str, list[int]]
    """Numbers of each layer that is asked for, by name."""


def _prepare(case: Case, _pattern: int, _device: str) -> Call:
    params = case.params
    numbered = {
        _layer_name(index): (_made_layer(row), layer_numbers(row, 5))
        for index, row in enumerate(params["layers"])
    }
    layers: dict[str, Any] = {name: layer for name, (layer, _) in numbered.items()}
    if _is_hybrid(case):
        layers[_STATE_SPACE] = StateSpaceLayer()
    cls = Impl if params["impl"] is None else IMPLS[params["impl"]]
    names = [list(numbered)[index] for index in params["asked"] if index < len(numbered)]
    names = [name for name in names if isinstance(layers[name].impl, cls)]
    config = EngineConfig(CompilationConfig(layers), SpeculativeConfig(2))
    return Call(
        {"vllm_config": config, "layer_names": names, "cls_": cls},
        plain={
            "layer_names": names,
            "impl": [vars(layer.impl) for layer, _ in numbered.values()],
        },
        facts=_LayerFacts(rows={name: numbered[name][1] for name in names}),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    """Return the parameters in the order asked for, so that a wrong order is one finding."""
    layers = of_children(parameter_outputs(result[name]) for name in call.facts.rows)
    return {Place("layers"): list(result)} | layers


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    if outputs[Place("layers")] != list(call.facts.rows):
        yield Violation("layers", "are not those asked for, in that order")
        return
    for index, (kind, window, soft_cap, scale, sinks) in enumerate(call.facts.rows.values()):
        cls = IMPLS[kind % len(IMPLS)]
        wanted = {
            "window_left": -1 if cls is LatentImpl else (window or 0) - 1,
            "logits_soft_cap": None if cls is LatentImpl else soft_cap_of(soft_cap),
            "sm_scale": SCALES[scale % len(SCALES)],
            "has_sinks": bool(sinks) and cls in (CausalImpl, MaskImpl, DerivedImpl),
        }
        for field, value in wanted.items():
            place = Place(field, child=index)
            if outputs[place] != value:
                yield Violation(place, "is not what the layer was made with")


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    if place.field == "window_left" and type(got) is int and got == expected + 1:
        return "window counted without the query's own key"
    return ""


def _asks(case: Case) -> bool:
    return bool(_prepare(case, 0, "cpu")["layer_names"])


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
    change, applies = _change_first(attribute, value), partial(_stores, attribute)
    return Fault("vllm_config", change, field, error, applies=applies, reads=("layer_names",))


def _stores(attribute: str, case: Case) -> bool:
    """True if the first layer asked for stores the attribute: a property cannot be set."""
    call = _prepare(case, 0, "cpu")
    layers = call["vllm_config"].compilation_config.static_forward_context
    classes = [type(layers[name].impl) for name in call["layer_names"]]
    return bool(classes) and not isinstance(getattr(classes[0], attribute, None), property)


get_per_layer_parameters = Operation(
    name=NAME,
    section="7",
    summary="window, soft cap, scale and sinks of each attention layer",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "name without a layer": Fault("layer_names", lambda names: [*names, "model.layers.99"]),
            "layer that is no attention": Fault(
                "layer_names",
                lambda names: [*names, _STATE_SPACE],
                "static_forward_context",
                applies=_is_hybrid,
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
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, diagnose=_diagnose),
    bench=Bench(never=WHY_SHARED),
    built_in=BuiltIn(shared=WHY_SHARED),
)

OPERATIONS = (get_per_layer_parameters,)
