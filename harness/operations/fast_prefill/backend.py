"""Operation of SPEC.md section 6 that makes a backend for fast prefill.

A case uses the backend as an engine does: it makes the builder and builds two engine steps, some
cases with a dummy run between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.engines import backend as engine
from attnproof.harness.cases.variation.neighbours import neighbours_of
from attnproof.harness.model.call import MISSING, Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall, Clocked, bound
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.fast_prefill.dataclass_fields import Form, Kinds
from attnproof.harness.operations.fast_prefill.reduced_batch import (
    ITSELF,
    KEPT,
    REDUCED,
    last_tokens,
    lay_out_sampled,
    makes_new_batch,
    reduced_consumed,
    reduced_outputs,
    reduced_violations,
    sampled_batches,
    sampling,
)
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.metadata import METADATA_FIELDS, BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params
from attnproof.reference.interface import (
    KV_SHARING_FAST_PREFILL_METADATA_FIELDS,
    KVSharingFastPrefillMetadata,
)

NAME = "create_fast_prefill_custom_backend"
_LOGITS = tuple(name for name, *_ in KV_SHARING_FAST_PREFILL_METADATA_FIELDS)
_PASSED_ON = "given."
"""Prefix of the output fields of the batch that the underlying builder was given."""
_DUMMY, _LAST_STEP = "dummy run.", "later."
"""Prefixes of the logits fields of the two steps after the first."""
_TRUE = (
    "is a subclass",
    "builder is a subclass",
    "metadata is a subclass",
    "later metadata is a subclass",
    "metadata has the protocol",
)
"""Output fields that must be True."""
_FORMS = st.integers(engine.DATACLASS, engine.PLAIN_SLOTS)
_KINDS = st.lists(st.integers(engine.REQUIRED, engine.ATTACHED), max_size=5)


@dataclass(frozen=True, kw_only=True)
class _BackendFacts(BatchFacts):
    backend: type[Any]
    """The underlying backend."""
    device: str
    kinds: list[int]
    """Kinds of the fields of the backend's metadata class."""
    prefix_len: int
    """Common prefix, in tokens."""
    fast_build: bool
    dummy: bool
    """True if a dummy run, without logits indices, is built between two steps."""
    others: list[Any]
    """Metadata of steps after the last, of as many rows and tokens."""


class _Params(Params):
    form: Form
    kinds: Kinds
    prefix_len: Count
    fast_build: bool
    dummy: bool = False
    own_logits: bool = False
    """True if the backend's metadata class has logits fields of its own."""


def _case(
    batch: Batch,
    form: int,
    kinds: list[int],
    prefix_len: int = 0,
    fast_build: bool = False,
    **more: bool,
) -> Case:
    """Return a case; `more` may have `dummy`, a dummy run between two steps, and `own_logits`."""
    params = {"form": form, "kinds": kinds, "prefix_len": prefix_len, "fast_build": fast_build}
    return Case(NAME, batch, params | more)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(
        draw(sampled_batches()),
        draw(_FORMS),
        draw(_KINDS),
        draw(st.sampled_from((0, 0, 32))),
        draw(st.booleans()),
        **draw(st.sampled_from(({}, {}, {"dummy": True}, {"own_logits": True}))),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    example = make_batch([15, 5, 8], [26, 26, 32], 16, logits_indices=(14, 18, 19, 27))
    every = list(range(engine.ATTACHED + 1))
    yield "SPEC example", _case(example, 0, [engine.REQUIRED])
    names = ("dataclass", "frozen dataclass", "dataclass with slots", "plain class", "plain slots")
    for form, name in enumerate(names):
        yield f"{name} with every kind of field", _case(example, form, every)
        own = _case(example, form, [engine.DEFAULT], own_logits=True, dummy=True)
        yield f"{name} with logits fields of its own", own
    yield "dummy run without logits indices (K20)", _case(make_batch([4], [0], 4), 0, [])
    yield "decodes only", _case(last_tokens(make_batch([1, 1], [3, 0], 4)), 0, [])
    yield "a decode that is not sampled", _case(sampling(make_batch([1], [3], 4), ()), 0, [])
    yield "a dummy run between two steps", _case(example, 0, [], dummy=True)
    yield "prefix and fast build", _case(example, 0, [], 32, fast_build=True)
    subclassed = make_batch([3, 4], [2, 0], 4, subclassed=True, logits_indices=(2, 6))
    yield "a subclass of the common metadata", _case(subclassed, 0, [engine.DEFAULT])


def _prepare(case: Case, pattern: int, device: str) -> Call:
    metadata, arena = lay_out_sampled(case, pattern, device)
    params = case.params
    logits = params.get("own_logits", False)
    backend = engine.make_backend(params["form"], params["kinds"], logits=logits)
    facts = _BackendFacts(
        batch=batch_of(case),
        metadata=metadata,
        backend=backend,
        device=device,
        kinds=params["kinds"],
        prefix_len=params["prefix_len"],
        fast_build=params["fast_build"],
        dummy=params.get("dummy", False),
        others=[lay_out_sampled(other, pattern, device)[0] for other in _others(case)],
    )
    args = {"prefix": "FastPrefill_", "underlying_attn_backend": backend}
    return Call(args, arena=arena, facts=facts)


def _others(case: Case) -> Iterator[Case]:
    """Yield the cases of later steps; where the case may not wait for a device, none may."""
    for batch in neighbours_of(batch_of(case)):
        other = msgspec.structs.replace(case, batch=batch)
        inside = all(index < batch.num_tokens for index in batch.logits_indices or ())
        if inside and makes_new_batch(other) <= makes_new_batch(case):
            yield other


def _use(offered: Any, call: Call) -> Any:
    """Return the backend, its builder, and the builder's metadata of the engine steps."""
    backend, facts = offered(*call.args.values()), call.facts
    builder = engine.make_builder(backend, facts.device)
    arguments = {
        "common_prefix_len": facts.prefix_len,
        "common_attn_metadata": facts.metadata,
        "fast_build": facts.fast_build,
    }
    unsampled = replace(facts.metadata, **dict.fromkeys(_LOGITS))
    steps = [arguments, *[arguments | {"common_attn_metadata": unsampled}] * facts.dummy, arguments]
    step_metadata = [builder.build(**step) for step in steps]
    for other in [*facts.others, *facts.others]:  # they leave the metadata above alone
        builder.build(**arguments | {"common_attn_metadata": other})
    return backend, builder, step_metadata


def _clocked(offered: Any, call: Call) -> Callable[[], Any]:
    """Return the build of one engine step: reduce the batch, call the underlying builder."""
    builder = engine.make_builder(offered(*call.args.values()), call.facts.device)
    for _ in range(2):  # the stand-in's classes of the first and of later steps, made once
        builder.build(0, call.facts.metadata, False)
    return bound(builder.build, 0, call.facts.metadata, False)


def _clocked_outputs(call: Call, built: Any) -> Outputs:
    """Return the fields of an engine step's metadata."""
    outputs: Outputs = {
        name: getattr(built, name, MISSING) for name in (*engine.BATCH_FIELDS, *_LOGITS)
    }
    for number, name in enumerate(engine.field_names(call.facts.kinds)):
        outputs[Place("detail", child=number)] = getattr(built, name, MISSING)
    return outputs


def _outputs(call: Call, result: Any) -> Outputs:
    wrapper, builder, (built, *dummies, last) = result
    facts = call.facts
    backend = facts.backend
    prefix_len, reduced, fast_build = builder.given[0]
    outputs: Outputs = {
        "name": wrapper.__name__,
        "is a subclass": issubclass(wrapper, backend) and wrapper is not backend,
        "builder is a subclass": isinstance(builder, backend.get_builder_cls()),
        "layer_names": list(builder.layer_names),
        "common_prefix_len": prefix_len,
        "fast_build": fast_build,
        # A builder may return the same object in each step: it stays as it was made.
        "underlying logits": [getattr(builder.made[0], name, MISSING) for name in _LOGITS],
        "metadata is a subclass": isinstance(built, backend.get_metadata_cls()),
        "later metadata is a subclass": isinstance(last, backend.later_metadata_cls),
        "metadata has the protocol": isinstance(built, KVSharingFastPrefillMetadata),
    }
    outputs |= reduced_outputs(facts.metadata, reduced, _PASSED_ON)
    for prefix, metadata in ((_LAST_STEP, last), *((_DUMMY, dummy) for dummy in dummies)):
        outputs |= {f"{prefix}{name}": getattr(metadata, name, MISSING) for name in _LOGITS}
    return outputs | _clocked_outputs(call, built)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    metadata = call.facts.metadata
    yield from reduced_violations(metadata, outputs, _PASSED_ON)
    for name in _TRUE:
        if not outputs[name]:
            yield Violation(name, "does not hold")
    for number, value in enumerate(engine.expected_values(call.facts.kinds).values()):
        place = Place("detail", child=number)
        if outputs[place] != value:
            yield Violation(place, "is not what the underlying builder gave it")
    for name in _LOGITS:
        wanted = {name: getattr(metadata, name), f"{_LAST_STEP}{name}": getattr(metadata, name)}
        if call.facts.dummy:
            wanted[f"{_DUMMY}{name}"] = None
        for field, value in wanted.items():
            if not _equal(outputs[field], value):
                yield Violation(field, "is not that of the batch")
    for name in ("query_start_loc", "max_query_len", "num_actual_tokens"):
        if not _equal(outputs[name], outputs.get(_PASSED_ON + name, getattr(metadata, name))):
            yield Violation(name, "is not what the underlying builder was given")


def _equal(first: Any, other: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(first, other)
    return bool(first is other or first == other)


def _diagnose(_call: Call, place: Place, _expected: Any, got: Any) -> str:
    name = place.field
    passed_on = {
        _PASSED_ON + ITSELF: "the underlying builder got another batch",
        _PASSED_ON + REDUCED: "the underlying builder got the whole batch",
        "common_prefix_len": "prefix length not handed on",
        "fast_build": "fast_build not handed on",
        "later metadata is a subclass": "metadata of the class of an earlier step",
    }
    if got is not MISSING:
        return passed_on.get(name, "")
    if name.removeprefix(_DUMMY).removeprefix(_LAST_STEP) in _LOGITS:
        return "metadata without its logits fields"
    return "field of the underlying metadata lost" if not name.startswith(_PASSED_ON) else ""


def _builds_a_tuple(backend: Any) -> type[Any]:
    """Return a backend whose metadata is a tuple: no field can be added to its class."""

    class Builder(backend.get_builder_cls()):  # type: ignore[misc]
        def build(self, *_args: Any, **_kwargs: Any) -> tuple[int, ...]:
            return (7,)

    members = {"get_builder_cls": staticmethod(lambda: Builder)}
    return type(backend.__name__, (backend,), members)


create_fast_prefill_custom_backend = Operation(
    name=NAME,
    section="6",
    summary="a backend whose builder gets only the tokens whose logits are sampled",
    inputs=Inputs(
        params=_Params,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: [_case(last_tokens(batch), batch.num_requests % 5, [0, 2, 5])],
        faults={
            "prefix of another type": Fault("prefix", lambda _: 7, error=TypeError),
            "backend of another type": wrong_type("underlying_attn_backend"),
            "metadata that cannot be extended": Fault(
                "underlying_attn_backend", _builds_a_tuple, "underlying builder", TypeError
            ),
            "class that is no backend": Fault(
                "underlying_attn_backend", lambda _: torch.Tensor, error=TypeError
            ),
        },
    ),
    call=ClassCall(
        clocked=Clocked(_clocked, _clocked_outputs), prepare=_prepare, use=_use, outputs=_outputs
    ),
    contract=Contract(
        invariants=_invariants,
        consume=lambda call, outputs: reduced_consumed(
            call.facts.metadata, call.facts.batch, outputs, _PASSED_ON
        ),
        may_alias=frozenset(
            {
                *engine.BATCH_FIELDS,
                *_LOGITS,
                *(f"{_LAST_STEP}{name}" for name in _LOGITS),
                *(_PASSED_ON + name for name in KEPT.union(METADATA_FIELDS)),
            }
        ),
        unread=frozenset((_PASSED_ON + ITSELF,)),
        may_sync=makes_new_batch,
        diagnose=_diagnose,
    ),
    bench=Bench(cases=lambda batch: [_case(last_tokens(batch), 0, [])]),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (create_fast_prefill_custom_backend,)
