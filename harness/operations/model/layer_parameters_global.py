"""Operation of SPEC.md section 7: one set of attention hyperparameters for all layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.model.layer_parameters import (
    SCALES,
    WHY_SHARED,
    Layers,
    layer_numbers,
    parameter_outputs,
    soft_cap_of,
    soft_cap_problem,
)
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import Params
from attnproof.reference.interface import PerLayerParameters

NAME = "infer_global_hyperparameters"
_FLAGS = (None, True, False)
_OWN = "the result is the caller's own object (E10)"

# A layer is [window left + 1, soft cap, scale, sinks, flags].
_layer = st.tuples(
    st.sampled_from((0, 0, 1, 128)),
    st.sampled_from((0, 0, 30, -1)),
    st.sampled_from((0, 0, 1)),
    st.sampled_from((0, 0, 1)),
    st.sampled_from((0, 0, 1, 2)),
).map(list)


class _Params(Params):
    layers: Layers


def _problem(case: Case) -> str:
    return soft_cap_problem(case.params["layers"], 1)


def _case(layers: list[list[int]]) -> Case:
    return Case(NAME, None, {"layers": layers})


def _cases() -> st.SearchStrategy[Case]:
    repeated = st.builds(lambda row, count: [row] * count, _layer, st.integers(1, 5))
    different = st.lists(_layer, min_size=1, max_size=5)
    return (repeated | different).map(_case)


def _boundaries() -> Iterator[tuple[str, Case]]:
    plain = [0, 0, 0, 0, 0]
    yield "one layer", _case([plain])
    yield "layers alike", _case([[128, 30, 1, 1, 0]] * 4)
    yield "windows that differ (K23)", _case([plain, [129, 0, 0, 0, 0]])
    yield "window of the last layer differs", _case([plain, plain, [1, 0, 0, 0, 0]])
    yield "soft caps that differ", _case([plain, [0, 30, 0, 0, 0]])
    yield "a soft cap of 0 beside none", _case([plain, [0, -1, 0, 0, 0]])
    yield "scales that differ", _case([plain, [0, 0, 1, 0, 0]])
    yield "scales that differ in the last bit", _case([plain, [0, 0, 3, 0, 0]])
    yield "sinks that differ", _case([plain, [0, 0, 0, 1, 0]])
    yield "first layer differs from the others", _case([[4, 0, 0, 0, 0], plain, plain])
    yield "flags of an earlier call do not count", _case([[0, 0, 0, 0, 1], [0, 0, 0, 0, 2]])
    yield "flags of an earlier call are replaced", _case([[0, 0, 0, 0, 1], [9, 0, 0, 0, 1]])


_FIRST_LAYER = 8
"""Number of the first layer, as of a later pipeline stage: "10" comes before "8" as text."""


def _steps(batch: Batch) -> Iterator[Case]:
    yield _case([[row % 2 * batch.block_size, 0, 0, 0, 0] for row in batch.query_lens[:6]])


@dataclass(frozen=True, kw_only=True)
class _GlobalFacts(Facts):
    rows: list[list[int]]
    """Numbers of each layer."""


def _prepare(case: Case, _pattern: int, _device: str) -> Call:
    # Shrinking may leave no layer: then there is one with all numbers 0.
    rows = [layer_numbers(numbers, 5) for numbers in case.params["layers"]] or [[0] * 5]
    layers = {
        f"model.layers.{_FIRST_LAYER + index}.self_attn.attn": PerLayerParameters(
            window_left=window - 1,
            logits_soft_cap=soft_cap_of(soft_cap),
            sm_scale=SCALES[scale % len(SCALES)],
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


def _outputs(call: Call, result: Any) -> Outputs:
    layers = call["per_layer_params"].values()
    return parameter_outputs(result) | {"is_own_object": any(result is layer for layer in layers)}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    rows = call.facts.rows
    if outputs["is_own_object"]:
        yield Violation("is_own_object", _OWN)
    if outputs["has_same_window_lefts"] is not (len({row[0] for row in rows}) == 1):
        yield Violation("has_same_window_lefts", "does not agree with the layers' windows")
    alike = {
        (window, cap, scale % len(SCALES), bool(sinks)) for window, cap, scale, sinks, _ in rows
    }
    if outputs["has_same_all_params"] is not (len(alike) == 1):
        yield Violation("has_same_all_params", "does not agree with the layers' parameters")
    if outputs["window_left"] != rows[0][0] - 1:
        yield Violation("window_left", "is not the first layer's")


def _as_dicts(layers: dict[str, PerLayerParameters]) -> dict[str, Any]:
    return {name: vars(layer) for name, layer in layers.items()}


infer_global_hyperparameters = Operation(
    name=NAME,
    section="7",
    summary="the first layer's hyperparameters, and flags for layers that differ",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "no layers": wrong_value("per_layer_params", {}),
            "no dict": wrong_type("per_layer_params"),
            "dicts for parameters": Fault("per_layer_params", _as_dicts, error=TypeError),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        invariants=_invariants,
        diagnose=lambda _call, place, _expected, _got: (
            _OWN if place.field == "is_own_object" else ""
        ),
    ),
    bench=Bench(never=WHY_SHARED),
    built_in=BuiltIn(shared=WHY_SHARED),
)

OPERATIONS = (infer_global_hyperparameters,)
