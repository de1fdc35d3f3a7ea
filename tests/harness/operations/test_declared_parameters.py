"""Every combination of the values that an operation declares can be prepared, called and judged.

A parameter's values follow from its type: both of a bool, all of a literal or of a small range,
the lower end of another range, both ends of one of floats, None where it is allowed, an empty
list. So do the flags of a batch, and the fields of the entries of a list, such as the steps of a
sequence. Of few values the test runs the whole product, otherwise cases that have every pair.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations, product
from math import prod
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from attnproof import reference
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.case_check import problem_of_variant
from attnproof.harness.running.loading import offered_by

SMALL = 16
"""Largest number of values of a range that are all tried."""
WHOLE = 64
"""Largest product of values that is run as a whole."""
Data = dict[str, Any]
"""A case as JSON values."""
Place = tuple[Any, ...]
"""Keys of a value in a case's data, from the outermost."""
Values = dict[Place, list[Any]]
"""Values to combine by their place."""
Row = dict[Place, int]
"""Indices of the values of one case; at all other places it has those of its base."""


def values_of(kind: inspect.Type) -> Iterator[Any]:
    """Yield the values of a type that are combined with those of others."""
    if isinstance(kind, inspect.UnionType):
        yield from chain.from_iterable(map(values_of, kind.types))
    elif isinstance(kind, inspect.NoneType):
        yield None
    elif isinstance(kind, inspect.BoolType):
        yield from (False, True)
    elif isinstance(kind, inspect.LiteralType):
        yield from kind.values
    elif isinstance(kind, inspect.IntType) and kind.ge is not None:
        small = kind.le is not None and kind.le - kind.ge < SMALL
        yield from range(kind.ge, kind.le + 1) if small else (kind.ge,)
    elif isinstance(kind, inspect.FloatType):
        yield from (float(end) for end in (kind.ge, kind.le) if end is not None)
    elif isinstance(kind, inspect.ListType) and not kind.min_length:
        yield []


def fields_of(kind: type[msgspec.Struct], data: Data, place: Place) -> Values:
    """Return the values of each field of a struct, with the one that the data have."""
    found = {}
    for field in inspect.type_info(kind).fields:
        name, values = field.encode_name, list(values_of(field.type))
        if name in data and data[name] not in values:
            values.append(data[name])
        if len(values) > 1:
            found[(*place, name)] = values
    return found


def flags_of(batch: Data) -> Values:
    """Return the bools and literals of a batch: its numbers belong together."""
    found = fields_of(Batch, batch, ("batch",))
    return {
        place: values for place, values in found.items() if {*map(type, values)} in ({bool}, {str})
    }


def bases_of(operation: Operation) -> Iterator[tuple[Data, Values]]:
    """Yield the smallest case, and the smallest one with each type of entry, with the values."""
    cases = [case for _, case in operation.inputs.boundaries()]
    base = msgspec.to_builtins(min(cases, key=size_of))
    params = operation.inputs.params
    flags = flags_of(base["batch"]) if "batch" in base else {}
    yield base, fields_of(params, base.get("params", {}), ("params",)) | flags
    for field in inspect.type_info(params).fields:
        item = getattr(field.type, "item_type", None)
        for kind in getattr(item, "types", (item,)):
            if isinstance(kind, inspect.StructType):
                yield from with_entry(cases, field.encode_name, kind)


def with_entry(
    cases: list[Case], name: str, kind: inspect.StructType
) -> Iterator[tuple[Data, Values]]:
    """Yield the case with the fewest entries up to one of this type, and that entry's values."""
    until = [
        (len(entries), case, entries)
        for case in cases
        for place, entry in enumerate(case.params.get(name) or ())
        if entry.get("do") == kind.tag and (entries := case.params[name][: place + 1])
    ]
    if until:
        count, case, entries = min(until, key=lambda each: each[0])
        base = msgspec.to_builtins(case)
        base["params"] |= {name: entries}
        yield base, fields_of(kind.cls, entries[-1], ("params", name, count - 1))


def size_of(case: Case) -> tuple[bool, int]:
    """Return the order of cases as bases: those with several requests first, then by length."""
    few = case.num_requests < 2 or case.num_tokens < 2
    return few, len(msgspec.json.encode(case))


def case_of(base: Data, values: Values, row: Row) -> Case:
    """Return the base with the values of a row."""
    data = msgspec.json.decode(msgspec.json.encode({"params": {}} | base))
    for (*keys, last), index in row.items():
        holder = data
        for key in keys:
            holder = holder[key]
        holder[last] = values[(*keys, last)][index]
    return msgspec.convert(data, Case)


def rows_of(values: Values, is_accepted: Callable[[Row], bool]) -> Iterator[Row]:
    """Yield the whole product if it is small, otherwise rows that have each accepted pair."""
    places = [[(place, index) for index in range(len(each))] for place, each in values.items()]
    if prod(map(len, places)) <= WHOLE:
        yield from filter(is_accepted, map(dict, product(*places)))
        return
    pairs = chain.from_iterable(product(*both) for both in combinations(places, 2))
    accepted = {pair for pair in pairs if is_accepted(dict(pair))}
    missing = dict.fromkeys(sorted(accepted))
    while missing:
        row: Row = {}
        for pair in missing:
            wider = row | dict(pair)
            if row.items() <= wider.items() and accepted.issuperset(pairs_in(wider, values)):
                row = wider
        found = pairs_in(row, values)
        # Three values may be refused together that are accepted two by two.
        yield from [row] if is_accepted(row) else map(dict, found)
        for pair in found:
            missing.pop(pair, None)


def pairs_in(row: Row, values: Values) -> list[tuple[tuple[Place, int], ...]]:
    """Return the pairs of a row, in the order of the places."""
    return list(combinations([(place, row[place]) for place in values if place in row], 2))


def cases_of(operation: Operation) -> list[Case]:
    """Return the combinations that `verify` would accept from outside."""
    cases: dict[str, Case] = {}
    for base, values in bases_of(operation):

        def made(row: Row, base: Data = base, values: Values = values) -> Case:
            return case_of(base, values, row)

        rows = rows_of(values, lambda row, made=made: not problem_of_variant(made(row)))
        cases |= {case.id: case for case in map(made, rows)}
    return list(cases.values())


@pytest.mark.parametrize("operation", ALL.values(), ids=ALL)
def test_the_reference_passes_every_combination_of_declared_values(operation):
    offer = offered_by(reference, operation)
    cases = cases_of(operation)
    assert cases
    for case in cases:
        assert judge(Trial(operation, case, offer, offer, "cpu")).failures == (), case
