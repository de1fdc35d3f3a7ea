"""Operation of SPEC.md section 6: a metadata class with fields added to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any

from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.engines import backend as engine
from attnproof.harness.model.call import MISSING, Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type
from attnproof.harness.operations.shared.params import Params
from attnproof.reference.interface import MetadataError

NAME = "subclass_attention_metadata"
SHARED = "classes are made once and compute nothing: there is nothing to make faster"
PREFIXES = st.sampled_from(("Sliced", "FastPrefill_", "", "Engine"))
_DATACLASSES = st.sampled_from((engine.DATACLASS, engine.FROZEN, engine.SLOTS))
KINDS = st.lists(st.integers(engine.REQUIRED, engine.ATTACHED), max_size=5)
_KEPT = ("frozen", "eq", "order", "unsafe_hash", "repr")
"""Options of a dataclass that its extension keeps."""
_OPTIONS = ("init", "repr", "hash", "compare", "kw_only")
"""Options of a field that its class keeps."""
_INT, _LIST, _TENSOR = range(3)
"""Kinds of added fields: an int, a list of each instance's own, an optional tensor."""
_ADDED = st.lists(st.integers(_INT, _TENSOR), max_size=4)
NOT_A_STRING = Fault("name_prefix", lambda _: 7, error=TypeError)


@dataclass(frozen=True, kw_only=True)
class _MetadataFacts(Facts):
    cls: type[Any]
    """The class that is extended."""
    kinds: list[int]
    """Kinds of the class's fields."""
    added: list[str]
    """Names of the added fields."""


def _declared(case: Case) -> list[int]:
    """Return the kinds of declared fields; fields attached to instances belong to no class."""
    return [kind for kind in case.params["kinds"] if kind != engine.ATTACHED]


def _added_fields(added: list[int]) -> list[tuple[str, Any, Any]]:
    declared: list[tuple[str, Any, Any]] = []
    for number, kind in enumerate(added):
        own_list: Any = field(
            default_factory=list, repr=False, hash=False, metadata={"list": number}
        )
        default: Any = {_LIST: own_list, _TENSOR: None}.get(kind, 7 + number)
        declared.append((f"added_{number}", Any, default))
    return declared


Form = Annotated[int, Meta(ge=engine.DATACLASS, le=engine.PLAIN_SLOTS)]
Kinds = Annotated[
    list[Annotated[int, Meta(ge=engine.REQUIRED, le=engine.ATTACHED)]], Meta(max_length=64)
]
Prefix = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{0,32}$")]
"""Start of a class's name."""


class _Params(Params):
    prefix: Prefix
    form: Form
    kinds: Kinds
    added: Annotated[list[Annotated[int, Meta(ge=_INT, le=_TENSOR)]], Meta(max_length=64)]
    undecorated: bool = False
    """True if the class is a subclass of a dataclass without a decorator of its own."""


def _case(
    prefix: str, form: int, kinds: list[int], added: list[int], undecorated: bool = False
) -> Case:
    params = {"prefix": prefix, "form": form, "kinds": kinds, "added": added}
    return Case(NAME, None, params | {"undecorated": undecorated})


def _boundaries() -> Iterator[tuple[str, Case]]:
    every = list(range(engine.ATTACHED))
    yield "two fields", _case("Sliced", 0, [], [_TENSOR, _INT])
    yield "nothing added", _case("Sliced", 0, [engine.REQUIRED], [])
    yield "every kind of field", _case("Sliced", 0, every, [_INT, _LIST, _TENSOR])
    yield "empty prefix", _case("", 0, every, [_INT])
    yield "prefix that the name begins with", _case("Engine", 0, every, [_INT])
    yield "frozen", _case("Sliced", engine.FROZEN, every, [_INT, _LIST])
    yield "slots", _case("Sliced", engine.SLOTS, every, [_INT, _TENSOR])
    for form, name in enumerate(("dataclass", "frozen dataclass", "dataclass with slots")):
        case = _case("Sliced", form, every, [_INT, _LIST], undecorated=True)
        yield f"undecorated subclass of a {name}", case


def _prepare(case: Case, _pattern: int, _device: str) -> Call:
    params, kinds = case.params, _declared(case)
    cls = engine.metadata_class(params["form"] % (engine.SLOTS + 1), kinds)
    if params.get("undecorated"):
        cls = type(cls.__name__, (cls,), {"__module__": cls.__module__})
    added = _added_fields(params["added"])
    facts = _MetadataFacts(cls=cls, kinds=kinds, added=[name for name, *_ in added])
    args = {"name_prefix": params["prefix"], "metadata_cls": cls, "fields": added}
    return Call(args, facts=facts)


def _use(offered: Any, call: Call) -> Any:
    """Return the class, an instance with defaults, one with given values, another with defaults."""
    subclass = offered(*call.args.values())
    kinds = call.facts.kinds
    details = engine.expected_values(kinds)
    taken = {
        name: details[name]
        for name, kind in zip(details, kinds, strict=True)
        if kind in (engine.REQUIRED, engine.KEYWORD)
    }
    values = taken | dict.fromkeys(engine.BATCH_FIELDS, 3)
    own = {name: 40 + number for number, name in enumerate(call.facts.added)}
    return subclass, subclass(**values), subclass(**values, **own), subclass(**values)


def _outputs(call: Call, result: Any) -> Outputs:
    subclass, plain, filled, second = result
    details, added = engine.field_names(call.facts.kinds), call.facts.added
    outputs: Outputs = {
        "name": subclass.__name__,
        "is a subclass": issubclass(subclass, call.facts.cls),
        "fields": [f.name for f in fields(subclass)] if is_dataclass(subclass) else MISSING,
        "module": subclass.__module__,
        "compared by identity": subclass.__eq__ is object.__eq__,
    }
    declared = {f.name: f for f in fields(subclass)} if is_dataclass(subclass) else {}
    outputs["options"] = [_options(declared[name]) for name in added if name in declared]
    outputs |= {name: getattr(subclass.__dataclass_params__, name) for name in _KEPT}
    for number, name in enumerate((*engine.BATCH_FIELDS, *details)):
        outputs[Place("inherited", child=number)] = getattr(plain, name, MISSING)
    for number, name in enumerate(added):
        outputs[Place("default", child=number)] = getattr(plain, name, MISSING)
        outputs[Place("given", child=number)] = getattr(filled, name, MISSING)
    outputs["lists are shared"] = any(
        isinstance(getattr(plain, name, None), list)
        and getattr(plain, name) is getattr(second, name)
        for name in (*details, *added)
    )
    return outputs


def _options(declared: Field[Any]) -> str:
    """Return the options of a field, as text."""
    options = {name: getattr(declared, name) for name in _OPTIONS}
    return f"{options} {dict(declared.metadata)}"


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    prefix, cls, added = call.args.values()
    if outputs["name"] != prefix + "EngineMetadata" or not outputs["is a subclass"]:
        yield Violation("name", "is not the prefix and the name of the class that is extended")
    wanted = [f.name for f in fields(cls)] + [name for name, *_ in added]
    if sorted(outputs["fields"]) != sorted(wanted):
        yield Violation("fields", "are not those of the class and the added ones")
    inherited = [3] * len(engine.BATCH_FIELDS)
    inherited += engine.expected_values(call.facts.kinds).values()
    for number, value in enumerate(inherited):
        place = Place("inherited", child=number)
        if outputs[place] != value:
            yield Violation(place, "is not what the class itself gives it")
    for number, (_, _, default) in enumerate(added):
        place = Place("default", child=number)
        if outputs[place] != ([] if isinstance(default, Field) else default):
            yield Violation(place, "is not the default of the added field")
        place = Place("given", child=number)
        if outputs[place] != 40 + number:
            yield Violation(place, "is not what the instance was given")
    for name in _KEPT:
        if outputs[name] is not getattr(cls.__dataclass_params__, name):
            yield Violation(name, "is not as in the class that is extended")
    if outputs["module"] != cls.__module__:
        yield Violation("module", "is not that of the class that is extended")
    if outputs["lists are shared"]:
        yield Violation("lists are shared", "between instances")


def _diagnose(_call: Call, place: Place, _expected: Any, got: Any) -> str:
    if got is MISSING and place.child is not None:
        return "field of the metadata class lost"
    return {
        "frozen": "frozen unlike the class that is extended",
        "compared by identity": "compared unlike the class that is extended",
        "eq": "compared unlike the class that is extended",
        "order": "ordered unlike the class that is extended",
        "unsafe_hash": "hashed unlike the class that is extended",
        "repr": "represented unlike the class that is extended",
        "options": "options of an added field lost",
        "module": "another module than that of the class that is extended",
    }.get(place.field, "")


def _steps(batch: Batch) -> Iterator[Case]:
    added = [query_len % 3 for query_len in batch.query_lens[:3]]
    yield _case("Sliced", batch.num_requests % 3, [batch.num_tokens % 5], added)


def _added_fault(*more: tuple[Any, ...], error: type[Exception] = MetadataError) -> Fault:
    return Fault("fields", lambda added: [*added, *more], error=error)


subclass_attention_metadata = Operation(
    name=NAME,
    section="6",
    summary="a metadata class with fields added to it",
    inputs=Inputs(
        params=_Params,
        has_batch=False,
        cases=lambda: st.builds(_case, PREFIXES, _DATACLASSES, KINDS, _ADDED, st.booleans()),
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "prefix of another type": NOT_A_STRING,
            "class of another type": wrong_type("metadata_cls"),
            "class that is no dataclass": Fault(
                "metadata_cls", lambda _: engine.metadata_class(engine.PLAIN, []), error=TypeError
            ),
            "fields of another type": wrong_type("fields"),
            "field without a default": _added_fault(("more", int), error=TypeError),
            "field without a name": _added_fault((3, int, 0), error=TypeError),
            "field that the class has": _added_fault(("seq_lens", int, 0)),
            "field added twice": _added_fault(("more", int, 0), ("more", int, 0)),
            "name that is none": _added_fault(("a b", int, 0)),
            "keyword as a name": _added_fault(("class", int, 0)),
            "one list for all instances": _added_fault(("more", list, [])),
        },
    ),
    call=ClassCall(prepare=_prepare, use=_use, outputs=_outputs),
    contract=Contract(invariants=_invariants, diagnose=_diagnose),
    bench=Bench(never=SHARED),
    built_in=BuiltIn(shared=SHARED),
)

OPERATIONS = (subclass_attention_metadata,)
