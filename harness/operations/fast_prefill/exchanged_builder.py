"""Operation of SPEC.md section 6: a backend class with another builder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.cases.engines import backend as engine
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.fast_prefill.dataclass_fields import (
    KINDS,
    NOT_A_STRING,
    PREFIXES,
    SHARED,
    Form,
    Kinds,
    Prefix,
)
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.params import Params

NAME = "subclass_attention_backend"
_FORMS = st.integers(engine.DATACLASS, engine.PLAIN_SLOTS)


@dataclass(frozen=True, kw_only=True)
class _BackendFacts(Facts):
    backend: type[Any]
    """The underlying backend."""
    builder: type[Any]
    """The builder that the new backend gets."""
    before: type[Any]
    """The underlying backend's own builder."""
    next_builder: type[Any]
    """The builder of a second backend with the same prefix and underlying backend."""


class _Params(Params):
    prefix: Prefix
    form: Form
    kinds: Kinds


def _case(prefix: str, form: int, kinds: list[int]) -> Case:
    return Case(NAME, None, {"prefix": prefix, "form": form, "kinds": kinds})


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "a builder of its own", _case("Local_4_16_", 0, [])
    yield "empty prefix", _case("", 0, [engine.REQUIRED])
    yield "prefix that the name begins with", _case("Engine", 0, [engine.REQUIRED])


def _prepare(case: Case, _pattern: int, _device: str) -> Call:
    params = case.params
    backend = engine.make_backend(params["form"], params["kinds"])
    other, next_builder = (
        engine.make_backend(engine.DATACLASS, [engine.COMPUTED]).get_builder_cls() for _ in range(2)
    )
    before = backend.get_builder_cls()
    facts = _BackendFacts(backend=backend, builder=other, before=before, next_builder=next_builder)
    args = {
        "name_prefix": params["prefix"],
        "attention_backend_cls": backend,
        "builder_cls": other,
    }
    return Call(args, facts=facts)


def _use(subclass: Any, call: Call) -> tuple[Any, ...]:
    """Return the backend, one of the same prefix and underlying backend, and a pair of two more.

    The pair is a subclass of the first one and the backend that is made of it.
    """
    prefix, backend, builder = call.args.values()
    wrapper = subclass(prefix, backend, builder)
    own = type("EngineBackend", (wrapper,), {"__module__": wrapper.__module__})
    again = subclass(prefix, own, call.facts.next_builder)
    return wrapper, subclass(prefix, backend, call.facts.next_builder), own, again


def _builder_of(backend: Any) -> Any:
    try:
        return backend.get_builder_cls()
    except TypeError:  # the method cannot be called on an instance
        return None


def _outputs(call: Call, results: tuple[Any, ...]) -> Outputs:
    (result, second, own, again), backend = results, call.facts.backend
    return {
        "name": result.__name__,
        "is a subclass": issubclass(result, backend) and result is not backend,
        "builder": result.get_builder_cls() is call.facts.builder,
        "builder of an instance": _builder_of(result()) is call.facts.builder,
        "builder of the next one": second.get_builder_cls() is call.facts.next_builder,
        "builder of a second wrapper": again.get_builder_cls() is call.facts.next_builder,
        "a second wrapper is a subclass": issubclass(again, own) and again is not own,
        "registered name": result.get_name(),
        "metadata class": result.get_metadata_cls() is backend.get_metadata_cls(),
        "accept_output_buffer": result.accept_output_buffer,
        "cache shape": list(result.get_kv_cache_shape(3, 16, 2, 8)),
        "class name": result.full_cls_name()[1],
        "module": result.__module__ == backend.__module__,
        "underlying builder": backend.get_builder_cls() is call.facts.before,
    }


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    name = call["name_prefix"] + "EngineBackend"
    wanted = {
        "name": name,
        "class name": name,
        "registered name": "ENGINE",
        "cache shape": [2, 3, 16, 2, 8],
    }
    for field_name, value in outputs.items():
        if value != wanted.get(field_name, True):
            yield Violation(field_name, "does not agree with the given backend and builder")


def _diagnose(_call: Call, place: Place, _expected: Any, _got: Any) -> str:
    return {
        "builder": "another builder than the given one",
        "builder of an instance": "get_builder_cls cannot be called on an instance",
        "builder of the next one": "the builder of an earlier backend",
        "underlying builder": "the underlying backend was changed",
        "a second wrapper is a subclass": "a backend that was made before is left out",
    }.get(place.field, "")


subclass_attention_backend = Operation(
    name=NAME,
    section="6",
    summary="a backend with another builder",
    inputs=Inputs(
        params=_Params,
        has_batch=False,
        cases=lambda: st.builds(_case, PREFIXES, _FORMS, KINDS),
        boundaries=_boundaries,
        from_batch=lambda batch: [_case("Sliced", batch.num_requests % 5, [])],
        faults={
            "prefix of another type": NOT_A_STRING,
            "backend of another type": wrong_type("attention_backend_cls"),
            "builder of another type": wrong_type("builder_cls"),
        },
    ),
    call=ClassCall(prepare=_prepare, outputs=_outputs, use=_use),
    contract=Contract(invariants=_invariants, diagnose=_diagnose),
    bench=Bench(never=SHARED),
    built_in=BuiltIn(shared=SHARED),
)

OPERATIONS = (subclass_attention_backend,)
