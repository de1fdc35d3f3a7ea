"""The cases and calls that follow from a definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, islice
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from attnproof.harness.cases.batches.real import real_batch
from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena
from attnproof.harness.model.call import Call, Facts, Outputs, Quantity
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.derived.arguments import Values, placement
from attnproof.harness.operations.derived.params import (
    LAYOUT,
    Form,
    constant_limits,
    free_axes,
    has_pool,
    key_of,
    layout_of,
    parameters_of,
    usual,
)
from attnproof.harness.operations.derived.pool import pool_problem
from attnproof.harness.operations.shared.metadata import BatchFacts
from attnproof.harness.operations.shared.params import size_problem
from attnproof.reference.definition.checking import check
from attnproof.reference.definition.definition import Definition
from attnproof.reference.definition.roles import Array, Int
from attnproof.reference.interface import MetadataError

_MOST_TRIED = 400
"""Pairs of values that are tried in search of usual arguments that meet the conditions."""
_MOST_TURN = 2**20
_MOST_ENTRIES = 2**17
"""Largest axis that follows from other values: the reference takes as many steps."""
_QUANTITIES = {"slots": Quantity.SLOTS, "query offsets": Quantity.OFFSETS}
Example = tuple[str, Batch | None, dict[str, Any]]
"""Name, batch and parameters, beside the usual ones, of a case."""
Step = tuple[Batch, dict[str, Any]]
"""Batch and parameters, beside the usual ones, of an engine's step."""


@dataclass(frozen=True, kw_only=True)
class DerivedFacts(BatchFacts):
    """Facts of a call on a batch."""

    params: dict[str, Any]
    """Parameters of the case."""


@dataclass(frozen=True, kw_only=True)
class ParamsFacts(Facts):
    """Facts of a call without a batch."""

    params: dict[str, Any]
    """Parameters of the case."""


class Cases:
    """Cases of a definition of a function, and their calls."""

    def __init__(
        self,
        form: Form,
        batches: Callable[[], st.SearchStrategy[Batch]],
        adapt: Callable[[Batch], Batch],
        examples: Callable[[], Iterable[Example]],
        steps: Callable[[Batch], Iterable[Step]] | None,
        problem: Callable[[Case], str],
    ) -> None:
        self.form, self.definition = form, form.definition
        self.parameters = parameters_of(form)
        self.pool = has_pool(self.definition)
        self._batches, self._adapt, self._examples = batches, adapt, examples
        self._steps, self._own_problem = steps, problem

    def drawn(self) -> st.SearchStrategy[Case]:
        """Return the strategy of well-formed cases."""
        return _drawn(self, self._batches().map(self._adapt))

    def problem(self, case: Case) -> str:
        """Return why a case cannot be run, "" if it can."""
        too_large = (pool_problem(case) if self.pool else "") or self._size_problem(case)
        return too_large or self._own_problem(case) or self._refused(case)

    @property
    def has_entries_by_context(self) -> bool:
        """True if arrays may have an entry for each token of a context."""
        return self.pool or any(axis in self.form.values for axis in free_axes(self.definition))

    def _size_problem(self, case: Case) -> str:
        """Return the problem of an array of too many elements, "" without."""
        sizes = {name: value for name, value in case.params.items() if name.startswith("size_")}
        elements = math.prod(max(1, size) for size in sizes.values())
        problem = size_problem(" * ".join(sizes), elements)
        if problem or not self.has_entries_by_context:
            return problem
        known = Values(self.form, case.batch, case.params, layout_of(case), 0).sizes
        named = [(known[axis], axis) for axis in free_axes(self.definition) if axis in known]
        longest, axis = max(named, default=(0, ""))
        return "" if longest <= _MOST_ENTRIES else f"{axis}: {longest} entries are too many"

    def _refused(self, case: Case) -> str:
        """Return the condition on several arguments that a case does not meet."""
        if not self.definition.has_conditions:
            return ""
        call = self.prepare(case, 0, "cpu")
        try:
            check(self.definition, call.args | call.kwargs)
        except MetadataError as error:
            return str(error)
        return ""

    def boundaries(self) -> Iterator[tuple[str, Case]]:
        """Yield the examples, then usual batches and one of them with each critical value."""
        plain = usual(self.parameters)
        for name, batch, changed in self._examples():
            yield name, self._case(batch, plain | changed)
        for name, case in self._derived_boundaries():
            if not self.problem(case):
                yield name, case

    def _derived_boundaries(self) -> Iterator[tuple[str, Case]]:
        """Yield usual batches, then one of them with each critical value of each parameter.

        Batches come with the usual flags and optional arguments, and with all others.
        """
        plain = self._usual
        named = dict[str, Batch | None](self._usual_batches())
        named = named or {"usual arguments": None}
        turned = plain | {name: not flag for name, flag in plain.items() if type(flag) is bool}
        for name, batch in named.items():
            yield name, self._case(batch, plain)
            if turned != plain:
                yield f"{name}, other flags", self._case(batch, turned)
        first = next(iter(named.values()))
        # A batch of an engine: what only others show is advice.
        first = real_batch(first) if first is not None else None
        for name, parameter in self.parameters.items():
            for value in parameter.values[1:]:
                text = f"{name} {value}" if name != LAYOUT else f"layout {_shown(value)}"
                yield text, self._case(first, {**plain, name: value})

    def _usual_batches(self) -> Iterator[tuple[str, Batch]]:
        for name, batch in usual_batches() if self.definition.has_batch else ():
            yield name, self._adapt(batch)

    @cached_property
    def _usual(self) -> dict[str, Any]:
        """Usual value of each parameter, or of those that meet the conditions the first."""
        # With conditions some hundred combinations are tried, and each engine step asks.
        plain = usual(self.parameters)
        if not self.definition.has_conditions:
            return plain
        batch = next((usual_batch for _, usual_batch in self._usual_batches()), None)
        other = {name: p.values for name, p in self.parameters.items() if name != LAYOUT}
        changes = [{}, *({name: value} for name, values in other.items() for value in values)]
        pairs = ({**first, **second} for first, second in combinations(changes, 2))
        for changed in chain(changes, islice(pairs, _MOST_TRIED)):
            if not self._refused(self._case(batch, {**plain, **changed})):
                return {**plain, **changed}
        return plain

    def _case(self, batch: Batch | None, params: dict[str, Any]) -> Case:
        return Case(self.definition.name, batch, params)

    def from_batch(self, batch: Batch) -> Iterator[Case]:
        """Yield the cases of a batch that an engine ran."""
        for of_step, changed in (self._steps or self._usual_steps)(self._adapt(batch)):
            case = self._case(of_step if self.definition.has_batch else None, self._usual | changed)
            if not self.problem(case):
                yield case

    def _usual_steps(self, batch: Batch) -> Iterator[Step]:
        # Without a batch, as many numbers as the step has requests.
        sizes = {name: batch.num_requests for name in self._usual if name.startswith("size_")}
        if self.definition.has_batch or sizes:
            yield batch, {} if self.definition.has_batch else sizes

    def prepare(self, case: Case, pattern: int, device: str) -> Call:
        """Return the call of a case."""
        layout = layout_of(case)
        values = Values(self.form, case.batch, case.params, layout, pattern)
        pieces = [values.piece(a, a.name, array) for a, array in values.arrays()]
        pieces += values.metadata_pieces()
        arena = Arena(pieces, STALE_PATTERNS[pattern], device, placement(layout))
        args, kwargs = values.bound(arena)
        facts: Facts = ParamsFacts(params=case.params)
        if case.batch is not None:
            facts = DerivedFacts(
                batch=case.batch,
                block_size=case.batch.block_size,
                result=_quantity(self.definition),
                tokens=values.sizes["T"],
                params=case.params,
                metadata=values.metadata_among(args | kwargs),
            )
        plain = {name: value for name, value in args.items() if type(value) in (list, dict)}
        return Call(args, kwargs, arena, plain, values.written(), facts=facts)

    def outputs(self, call: Call, result: Any) -> Outputs:
        """Return the results and the written arguments by name."""
        # A result may be a view of what is written: a mistake in both is one of the result.
        names = [output.name for output in self.definition.results]
        if len(names) < 2 or not isinstance(result, tuple) or len(result) != len(names):
            named: Any = {names[0] if len(names) == 1 else "result": result}
        else:
            named = zip(names, result, strict=True)
        written = {argument.name for argument in self.definition.arguments if argument.is_written}
        return Outputs(named) | {name: call[name] for name in sorted(written & call.written)}


@st.composite
def _drawn(draw: st.DrawFn, cases: Cases, batches: st.SearchStrategy[Batch]) -> Case:
    definition = cases.definition
    batch = draw(batches) if definition.has_batch else None
    params = {name: draw(parameter.drawn) for name, parameter in cases.parameters.items()}
    near = _near_turns(definition, params)
    for argument in definition.arguments if near else ():
        declared = argument.declared
        if key_of(argument) not in params or not isinstance(declared, Array):
            continue
        if declared.is_free and declared.role == "numbers":
            low, high = constant_limits(declared)
            numbers = st.sampled_from([max(low, min(number, high)) for number in near])
            drawn = st.just(params[key_of(argument)]) | st.lists(numbers, min_size=1)
            params[key_of(argument)] = draw(drawn)
    case = Case(definition.name, batch, params)
    assume(not cases.problem(case))
    return case


def _near_turns(definition: Definition, params: dict[str, Any]) -> list[int]:
    """Return numbers beside the multiples of a case's integers, and of the product of all."""
    numbers = [key_of(a) for a in definition.arguments if isinstance(a.declared, Int)]
    sizes = [params[name] for name in numbers if 1 < params.get(name, 0) < _MOST_TURN]
    whole = math.prod(sizes)
    sizes += [whole, 2 * whole] if 1 < whole < _MOST_TURN else []
    return sorted({size + off for size in sizes for off in (-1, 0, 1, 2)})


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


def _quantity(definition: Definition) -> Quantity:
    roles = {result.declared.role for result in definition.results}
    return _QUANTITIES.get(roles.pop(), Quantity.OTHER) if len(roles) == 1 else Quantity.OTHER
