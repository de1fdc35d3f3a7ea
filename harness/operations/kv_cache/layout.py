"""Operations of SPEC.md section 7: the layout of KV caches, one call at a time.

`layout_sequence` has many calls in a row. Each call here restores layout and environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall, FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_value
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.shared.params import Params

GET, SET, VALID = "get_kv_cache_layout", "set_kv_cache_layout", "is_valid_kv_cache_layout"
_VARIABLE = "VLLM_KV_CACHE_LAYOUT"
_LAYOUTS = ("NHD", "HND")
_NOT_LAYOUTS = ("nhd", "NHD ", "HN", "NHDN", "DHN", "", "None", "NHD\n", " HND", "NHDHND")
_WHY_SHARED = "one value for the whole process: nothing to make faster, and two would disagree"


_Layout = Literal["NHD", "HND"]


class _GetParams(Params):
    environment: _Layout | None


class _SetParams(Params):
    cache_layout: _Layout | None
    environment: Literal["NHD", "HND", "nhd"] | None


_Word = Annotated[str, Meta(max_length=64)]


class _ValidParams(Params):
    value: bool | Count | _Word | Annotated[list[_Word], Meta(max_length=8)] | None


@contextmanager
def _environment(layout: str | None) -> Iterator[None]:
    """Set the variable to the layout, None for unset; restore it at the end."""
    before = os.environ.pop(_VARIABLE, None)
    if layout is not None:
        os.environ[_VARIABLE] = layout
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        if before is not None:
            os.environ[_VARIABLE] = before


def _read(offered: Any, call: Call) -> Any:
    """Read the layout with the case's environment."""
    with _environment(call["environment"]):
        return offered()


def _get_case(environment: str | None) -> Case:
    return Case(GET, None, {"environment": environment})


def _get_boundaries() -> Iterator[tuple[str, Case]]:
    yield "nothing said", _get_case(None)
    yield "the environment says HND", _get_case("HND")
    yield "the environment says NHD after that (E9)", _get_case("NHD")


def _get_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    if outputs["result"] != (call["environment"] or "NHD"):
        yield Violation("result", "is neither the environment's layout nor the default")


def _earlier_answer(_call: Call, _place: Place, _expected: Any, got: Any) -> str:
    # One call reads one environment: another valid layout can only come from an earlier call.
    return "an earlier answer was kept" if got in _LAYOUTS else ""


get_kv_cache_layout = Operation(
    name=GET,
    section="7",
    summary="the layout of the environment variable, or the default",
    inputs=Inputs(
        params=_GetParams,
        has_batch=False,
        cases=lambda: st.sampled_from((None, *_LAYOUTS)).map(_get_case),
        boundaries=_get_boundaries,
        from_batch=lambda batch: [_get_case(_LAYOUTS[batch.num_requests % 2])],
        faults={
            "environment with another word": Fault("environment", lambda _: "nhd", _VARIABLE),
            "empty environment": Fault("environment", lambda _: "", _VARIABLE),
        },
    ),
    call=ClassCall(
        prepare=lambda case, _pattern, _device: Call(dict(case.params)),
        use=_read,
        outputs=returned,
    ),
    contract=Contract(invariants=_get_invariants, diagnose=_earlier_answer),
    bench=Bench(never=_WHY_SHARED),
    built_in=BuiltIn(shared=_WHY_SHARED),
)


def _set_and_read(offered: Any, call: Call) -> Any:
    """Set the layout, read it with the candidate's own reader if it has one, and unset it."""
    reader = getattr(sys.modules.get(getattr(offered, "__module__", "")), GET, None)
    with _environment(call["environment"]):
        try:
            result = offered(call["cache_layout"])
            if reader is not None:
                call.observed["read"] = reader()
            return result
        finally:
            offered(None)


def _set_case(cache_layout: str | None, environment: str | None = None) -> Case:
    return Case(SET, None, {"cache_layout": cache_layout, "environment": environment})


def _set_boundaries() -> Iterator[tuple[str, Case]]:
    for layout in _LAYOUTS:
        yield f"{layout}, nothing in the environment", _set_case(layout)
        for environment in _LAYOUTS:
            yield (
                f"{layout} where the environment says {environment}",
                _set_case(layout, environment),
            )
    yield "nothing set and nothing said", _set_case(None)
    yield "nothing set: the environment counts", _set_case(None, "HND")
    yield "HND where the environment says another word", _set_case("HND", "nhd")


def _set_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    layout = call["cache_layout"] or call["environment"] or "NHD"
    if call.observed.get("read", layout) != layout:
        yield Violation("result", "what was set is not what is read")
    if outputs["result"] is not None:
        yield Violation("result", "returns something")


def _prepare_set(case: Case, _pattern: int, _device: str) -> Call:
    """Return the call, without an unknown word in the environment that would be read."""
    layout, environment = case.params["cache_layout"], case.params["environment"]
    if layout is None and environment not in _LAYOUTS:
        environment = None
    return Call({"cache_layout": layout, "environment": environment})


set_kv_cache_layout = Operation(
    name=SET,
    section="7",
    summary="sets the layout for the process, or unsets it",
    inputs=Inputs(
        params=_SetParams,
        has_batch=False,
        cases=lambda: st.builds(
            _set_case, st.sampled_from((*_LAYOUTS, None)), st.sampled_from((None, *_LAYOUTS, "nhd"))
        ),
        boundaries=_set_boundaries,
        from_batch=lambda batch: [_set_case(_LAYOUTS[batch.num_requests % 2])],
        faults={
            "another word": wrong_value("cache_layout", "nhd"),
            "empty word": wrong_value("cache_layout", ""),
            "number": Fault("cache_layout", lambda _: 7, error=TypeError),
        },
    ),
    call=ClassCall(prepare=_prepare_set, use=_set_and_read, outputs=returned),
    contract=Contract(invariants=_set_invariants),
    bench=Bench(never=_WHY_SHARED),
    built_in=BuiltIn(shared=_WHY_SHARED),
)


def _valid_case(value: Any) -> Case:
    return Case(VALID, None, {"value": value})


def _valid_cases() -> st.SearchStrategy[Case]:
    others = st.none() | st.booleans() | st.integers(0, 3) | st.lists(st.just("NHD"), max_size=2)
    return (st.sampled_from((*_LAYOUTS, *_NOT_LAYOUTS)) | others).map(_valid_case)


def _valid_boundaries() -> Iterator[tuple[str, Case]]:
    for value in (*_LAYOUTS, *_NOT_LAYOUTS, None, 0, ["NHD"]):
        yield repr(value), _valid_case(value)


def _valid_steps(batch: Batch) -> Iterable[Case]:
    yield _valid_case((*_LAYOUTS, *_NOT_LAYOUTS)[batch.num_requests % 4])


def _valid_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    if outputs["result"] is not (call["value"] in ("HND", "NHD")):
        yield Violation("result", "does not agree with the value: only NHD and HND are valid")


is_valid_kv_cache_layout = Operation(
    name=VALID,
    section="7",
    summary="True if a value is the name of a layout",
    inputs=Inputs(
        params=_ValidParams,
        has_batch=False,
        cases=_valid_cases,
        boundaries=_valid_boundaries,
        from_batch=_valid_steps,
    ),
    call=FunctionCall(
        prepare=lambda case, _pattern, _device: Call(dict(case.params), plain=dict(case.params)),
        outputs=returned,
    ),
    contract=Contract(invariants=_valid_invariants),
    bench=Bench(never=_WHY_SHARED),
    built_in=BuiltIn(shared=_WHY_SHARED),
)

OPERATIONS = (get_kv_cache_layout, set_kv_cache_layout, is_valid_kv_cache_layout)
