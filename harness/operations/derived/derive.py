"""An `Operation` derived from a definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from itertools import chain, combinations, islice
from typing import Any

import numpy as np
import torch
from hypothesis import assume
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs, Quantity
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import (
    diagnose_float,
    of_role,
    placement,
    values_of,
)
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.derived.params import (
    LAYOUT,
    Parameter,
    constant_limits,
    has_pool,
    key_of,
    layout_of,
    parameters_of,
    params_type,
    usual,
    why_unreal_layout,
)
from attnproof.harness.operations.derived.pool import needs_wide_pool, pool_problem
from attnproof.harness.operations.derived.steps import class_operation
from attnproof.harness.operations.shared.metadata import BatchFacts
from attnproof.reference.definition.checking import check
from attnproof.reference.definition.definition import Definition, DefinitionError, definition_of
from attnproof.reference.definition.roles import CUT_AXES, Array, Flag, Int, Object, size_of
from attnproof.reference.interface import MetadataError

_JOINED = {
    "query offsets": Joined.OFFSETS,
    "slots": Joined.TOKENS,
    "positions": Joined.TOKENS,
    "request indices": Joined.ROW_INDICES,
    "token starts": Joined.TOKEN_INDICES,
}
"""Relation of a whole batch's results to those of its parts, by role; (R,) of others: entries."""
_MOST_TRIED = 400
"""Pairs of values that are tried in search of usual arguments that meet the conditions."""
OWN = ""
"""Section of an operation that SPEC.md does not have."""
_MOST_TURN = 2**20

Judge = Callable[[Call, Outputs], Iterable[Violation]]
Example = tuple[str, Batch | None, dict[str, Any]]
"""Name, batch and parameters, beside the usual ones, of a case that is always run."""


def derive(
    definition: Definition,
    *,
    section: str = OWN,
    summary: str = "",
    examples: Callable[[], Iterable[Example]] = tuple,
    faults: Mapping[str, Fault] | None = None,
    unreal: Callable[[Case], str] = lambda _: "",
    built_in: BuiltIn | None = None,
    invariants: Judge | None = None,
    **contract: Any,
) -> Operation:
    """Return the operation: its cases, arguments, faults and relations.

    What follows from no role is added by hand: `examples`, `faults`, `invariants`, why a case is
    `unreal`, and fields of the `Contract`.
    """
    for argument in definition.every_argument:
        if isinstance(argument.declared, Object):
            raise DefinitionError(
                f"{definition.place}: {definition.name}: no case can be derived of "
                f"{argument.name}, {argument.declared}"
            )
    if definition.methods:
        return class_operation(definition, OWN)
    parameters = parameters_of(definition)
    pool = has_pool(definition)
    prepare = partial(_prepare, definition)
    # With conditions some hundred combinations are tried, and each engine step asks.
    plain_arguments = cache(partial(usual_arguments, definition, parameters))

    def problem(case: Case) -> str:
        return (pool_problem(case) if pool else "") or _problem(definition, case)

    def why_unreal(case: Case) -> str:
        return why_unreal_layout(case) or (needs_wide_pool(case) if pool else "") or unreal(case)

    def all_boundaries() -> Iterator[tuple[str, Case]]:
        plain = usual(parameters)
        for name, batch, changed in examples():
            yield name, Case(definition.name, batch, plain | changed)
        for name, case in boundaries(definition, parameters, plain_arguments()):
            if not problem(case):
                yield name, case

    def from_batch(batch: Batch) -> Iterator[Case]:
        for case in _from_batch(definition, plain_arguments(), batch):
            if not problem(case):
                yield case

    return Operation(
        name=definition.name,
        section=section,
        summary=summary or definition.summary,
        inputs=Inputs(
            params=params_type(parameters),
            unreal=why_unreal,
            problem=problem,
            has_batch=definition.has_batch,
            whole_contexts=pool,
            cases=lambda: _cases(definition, parameters),
            boundaries=all_boundaries,
            from_batch=from_batch,
            faults=faults_of(definition, prepare) | dict(faults or {}),
        ),
        call=FunctionCall(prepare=prepare, outputs=partial(_outputs, definition)),
        contract=replace(_contract(definition, invariants), **contract),
        built_in=built_in or BuiltIn(),
    )


def derive_built_in(function: Any, **added: Any) -> Operation:
    """Return the operation of a reference of attnproof; see `derive`."""
    definition = definition_of(function)
    assert definition is not None, f"{function.__name__} is not defined by its signature"
    return derive(definition, **added)


@st.composite
def _cases(draw: st.DrawFn, definition: Definition, parameters: dict[str, Parameter]) -> Case:
    batch = draw(batches()) if definition.has_batch else None
    params = {name: draw(one.drawn) for name, one in parameters.items()}
    near = _near_turns(definition, params)
    for argument in definition.arguments if near else ():
        declared = argument.declared
        if isinstance(declared, Array) and declared.is_free and declared.role == "numbers":
            low, high = constant_limits(declared)
            numbers = st.sampled_from([max(low, min(number, high)) for number in near])
            drawn = st.just(params[key_of(argument)]) | st.lists(numbers, min_size=1)
            params[key_of(argument)] = draw(drawn)
    case = Case(definition.name, batch, params)
    assume(not _problem(definition, case))
    return case


def _problem(definition: Definition, case: Case) -> str:
    """Return the condition on several arguments that a case does not meet."""
    if not definition.has_conditions:
        return ""
    call = _prepare(definition, case, 0, "cpu")
    try:
        check(definition, call.args | call.kwargs)
    except MetadataError as error:
        return str(error)
    return ""


def _near_turns(definition: Definition, params: dict[str, Any]) -> list[int]:
    """Return numbers beside the multiples of a case's integers, and of the product of all."""
    numbers = [key_of(a) for a in definition.arguments if isinstance(a.declared, Int)]
    sizes = [params[name] for name in numbers if 1 < params.get(name, 0) < _MOST_TURN]
    whole = math.prod(sizes)
    sizes += [whole, 2 * whole] if 1 < whole < _MOST_TURN else []
    return sorted({size + off for size in sizes for off in (-1, 0, 1, 2)})


def boundaries(
    definition: Definition, parameters: dict[str, Parameter], plain: dict[str, Any]
) -> Iterator[tuple[str, Case]]:
    """Yield usual batches, then one of them with each critical value of each parameter.

    Batches come with the usual flags and optional arguments, `plain`, and with all others.
    """
    named = dict(usual_batches()) if definition.has_batch else {"usual arguments": None}
    turned = plain | {name: not value for name, value in plain.items() if type(value) is bool}
    for name, batch in named.items():
        yield name, Case(definition.name, batch, plain)
        if turned != plain:
            yield f"{name}, other flags", Case(definition.name, batch, turned)
    first = next(iter(named.values()))
    for name, one in parameters.items():
        for value in one.values[1:]:
            text = f"{name} {value}" if name != LAYOUT else f"layout {_shown(value)}"
            yield text, Case(definition.name, first, {**plain, name: value})


def usual_arguments(definition: Definition, parameters: dict[str, Parameter]) -> dict[str, Any]:
    """Return the usual value of each parameter, or of those that meet the conditions the first."""
    plain = usual(parameters)
    if not definition.has_conditions:
        return plain
    batch = next(iter(dict(usual_batches()).values())) if definition.has_batch else None
    other = {name: one.values for name, one in parameters.items() if name != LAYOUT}
    changes = [{}, *({name: value} for name, values in other.items() for value in values)]
    pairs = ({**one, **two} for one, two in combinations(changes, 2))
    for changed in chain(changes, islice(pairs, _MOST_TRIED)):
        if not _problem(definition, Case(definition.name, batch, {**plain, **changed})):
            return {**plain, **changed}
    return plain


def _shown(layout: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in layout.items())


def usual_batches() -> Iterator[tuple[str, Batch]]:
    """Yield batches with the structure that kernels and loops get wrong."""
    yield "mixed batch", make_batch([1, 2, 0, 3], [4, 0, 3, 1], 4, order="descending")
    yield "one decode", make_batch([1], [6], 4)
    yield "requests without tokens at both ends", make_batch([0, 0, 9, 0], [1, 0, 2, 3], 4)
    yield "no requests", make_batch([], [], 4)
    yield "padded rows", make_batch([1, 3], [7, 0], 4, padded_requests=2, spare_columns=2)
    yield "a full last block", make_batch([4, 1, 2], [4, 7, 6], 4, order="shuffled")
    yield "shared prefix", make_batch([2, 2], [8, 8], 4, shared=True)
    for tokens in (1023, 1024, 1025, 2500):
        yield f"{tokens} tokens of a request (K19)", make_batch([tokens, 1], [3, 2], 16)
    # Numbers of rows beside a tile, and beside what a byte holds.
    yield "256 decodes", make_batch([1] * 256, [row % 9 for row in range(256)], 4)
    for rows in (128, 129, 257):
        lengths = [1 + row % 3 for row in range(rows)]
        yield f"{rows} requests (K19)", make_batch(lengths, [row % 7 for row in range(rows)], 4)
    yield "long contexts", make_batch([3, 1], [2**20 + 254, 2**21], 256)
    yield "highest block ids (K15)", make_batch([3, 2], [15, 0], 16, first=HIGHEST_BLOCK - 4)
    yield "int64", make_batch([4, 3], [1, 5], 4, dtype="int64")


def _from_batch(definition: Definition, plain: dict[str, Any], batch: Batch) -> Iterator[Case]:
    case = Case(definition.name, batch, plain)
    if not definition.has_batch:
        # As many numbers as the step has requests.
        sizes = {name: batch.num_requests for name in plain if name.startswith("size_")}
        case = Case(definition.name, None, plain | sizes)
    if definition.has_batch or sizes:
        yield case


def _prepare(definition: Definition, case: Case, pattern: int, device: str) -> Call:
    layout = layout_of(case)
    values = values_of(definition, case, layout, pattern)
    pieces = [values.piece(one, one.name, array) for one, array in values.arrays()]
    arena = Arena(pieces, STALE_PATTERNS[pattern], device, placement(layout))
    args, kwargs = values.bound(arena)
    written = frozenset(
        one.name
        for one in definition.arguments
        if isinstance(one.declared, Array) and one.declared.written and one.name in arena.tensors
    )
    facts = None
    if case.batch is not None:
        facts = BatchFacts(
            batch=case.batch, block_size=case.batch.block_size, result=_quantity(definition)
        )
    return Call(args, kwargs, arena=arena, written=written, facts=facts)


def _quantity(definition: Definition) -> Quantity:
    roles = {result.declared.role for result in definition.results}
    return Quantity.SLOTS if roles == {"slots"} else Quantity.OTHER


def _outputs(definition: Definition, call: Call, result: Any) -> Outputs:
    outputs = Outputs({name: call[name] for name in sorted(call.written)})
    names = [one.name for one in definition.results]
    if len(names) < 2 or not isinstance(result, tuple) or len(result) != len(names):
        return outputs | {names[0] if len(names) == 1 else "result": result}
    return outputs | dict(zip(names, result, strict=True))


def _contract(definition: Definition, invariants: Judge | None) -> Contract:
    results = {one.name: one.declared for one in definition.results}
    arrays = {a.name: a.declared for a in definition.arguments if isinstance(a.declared, Array)}
    results |= {name: one for name, one in arrays.items() if one.written}
    joined = {name: how for name, one in results.items() if (how := _join(one)) is not None}
    relations = None
    if definition.independent and definition.has_batch and joined and _can_be_cut(definition):
        alone = {"spare": 0} if any(one.longer for one in arrays.values()) else {}
        lengths = {results[name].sizes[0].axis for name in joined}
        numbers = [
            a
            for a in definition.arguments
            if isinstance(a.declared, Int)
            and (a.declared.axis in lengths - {""} or isinstance(a.declared.least, str))
        ]
        relations = Relations(
            joined=joined,
            alone=alone | {key_of(one): 0 for one in numbers},
            per_request=frozenset(
                key_of(a)
                for a in definition.arguments
                if isinstance(a.declared, Array) and _is_of_rows(a.declared)
            ),
        )
    return Contract(
        invariants=partial(_violations, definition, invariants),
        diagnose=diagnose_float,
        relations=relations,
        tolerances={name: one.tolerance for name, one in results.items() if one.tolerance},
        may_alias=frozenset(name for name, one in results.items() if one.may_alias or one.written),
    )


def _wrong_floats(definition: Definition, _call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Yield a result of another dtype: equality compares those with a tolerance by value."""
    for result in definition.results:
        value, declared = outputs.get(result.name), result.declared
        if not declared.tolerance or not isinstance(value, torch.Tensor):
            continue
        if value.dtype not in (*declared.dtypes, torch.float64):  # float64 is the reference's
            yield Violation(result.name, f"is of {value.dtype}, which is not declared")


def _can_be_cut(definition: Definition) -> bool:
    """True if the arguments of a part of the rows follow from those of the whole."""
    numbers = {a.name for a in definition.arguments if isinstance(a.declared, Int)}
    for argument in definition.arguments:
        declared = argument.declared
        if isinstance(declared, Flag):
            continue
        axes = {size_of(one).axis for one in (declared.below, declared.least) if one is not None}
        if isinstance(declared, Array) and not (declared.follows_batch or declared.written):
            axes |= set() if _is_of_rows(declared) else {one.axis for one in declared.sizes}
        elif isinstance(declared, Int) and (declared.axis or isinstance(declared.least, str)):
            axes = set()  # it is least in the parts
        if axes & {*CUT_AXES, *numbers}:
            return False
    return True


def _is_of_rows(declared: Array) -> bool:
    """True for a list of the case with an element for each row."""
    return declared.is_free and declared.sizes == (("R", 1, 0),)


def _violations(
    definition: Definition, own: Judge | None, call: Call, outputs: Outputs
) -> Iterator[Violation]:
    """Compare the results that a batch determines with those of the batch, then judge by `own`."""
    if own is not None:
        yield from own(call, outputs)
    yield from _wrong_floats(definition, call, outputs)
    arrays = [(a.name, a.declared) for a in definition.arguments if isinstance(a.declared, Array)]
    if any(one.or_empty and not call[name].numel() for name, one in arrays):
        return  # its absence changes what the results are
    for result in definition.results if definition.has_batch else ():
        declared = result.declared
        if not declared.follows_batch or declared.role in ("slots", "block table", "slot pool"):
            continue
        right = of_role(batch_arrays(call.facts.batch), declared.role, 0).astype(np.int64)
        if not np.array_equal(int64_array(outputs[result.name])[: len(right)], right):
            yield Violation(result.name, f"differs from the {declared.role} of the batch")


def _join(declared: Array) -> Joined | None:
    if declared.role in _JOINED:
        return _JOINED[declared.role]
    return Joined.ENTRIES if declared.sizes and declared.sizes[0] == ("R", 1, 0) else None


__all__ = ["OWN", "boundaries", "derive"]
