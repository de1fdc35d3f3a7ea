"""Changes of a case's parameters, from the types that the operation declares for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from math import prod
from typing import Any

import msgspec
from msgspec import inspect

from attnproof.harness.cases.magnitudes import FULL, LARGE, NUMBERS, critical, near
from attnproof.harness.cases.variation.change import Change
from attnproof.harness.cases.variation.rows import cycle, uneven
from attnproof.harness.model.case import Case

_UNCHANGED = frozenset({"seed", "steps"})
"""Parameters whose values have no critical magnitude, or are changed otherwise."""
_MOST_VALUE = 2**31 - 1
_MOST_CODE = 16
"""Maximum value of an integer that stands for one of a few forms."""
_MOST_LAID_OUT = 300
"""Maximum of a number of things that are laid out in memory."""
_MOST_TOKENS = 1025
_Value = Callable[[Case, Any], Any]
"""Function from a case and the value of a parameter before to the one after, None for none."""
_Named = tuple[str, str, _Value]
"""Name of a value, its group (`Change.group`) and the value."""
_FACTORS = (2, 3, 4, 8, 16)
"""Factors that all numbers of a list share, such as numbers of ranks."""
_RATIOS = (0.02, 0.25, 1.0, 7.0)


def _block(case: Case) -> int:
    return case.batch.block_size if case.batch else int(case.params.get("block_size", 0))


def _lengths(case: Case) -> list[tuple[int, int]]:
    if case.batch is None or not case.batch.num_requests:
        return [(case.num_tokens, 0)]
    return list(zip(case.batch.query_lens, case.batch.computed_lens, strict=True))


_OWN: dict[str, Callable[[Case], int]] = {
    "block": _block,
    "2 blocks": lambda case: 2 * _block(case),
    "3 blocks": lambda case: 3 * _block(case),
    "64 blocks": lambda case: 64 * _block(case),
    "requests": lambda case: case.num_requests,
    "tokens": lambda case: case.num_tokens,
    "first query": lambda case: _lengths(case)[0][0],
    "longest query": lambda case: max(q for q, _ in _lengths(case)),
    "longest sequence": lambda case: max(q + c for q, c in _lengths(case)),
    "shortest sequence": lambda case: min(q + c for q, c in _lengths(case)),
    "last context": lambda case: _lengths(case)[-1][1],
}
"""Magnitudes of the case itself."""


def param_changes(params: type[msgspec.Struct]) -> Iterator[Change]:
    """Yield the changes of parameters of this type, in the order of its fields."""
    described = inspect.type_info(params)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        param = field.encode_name
        if param in _UNCHANGED:
            continue
        for name, group, change in _changes(field.type):
            yield _of_param(param, param, name, group, change)
        for name, group, change in _bounded(field.type, described.fields):
            yield _of_param(param, param, name, group, change)
        item = getattr(field.type, "item_type", None)
        if isinstance(item, inspect.StructType):
            yield from _structs(param, item)
            yield from _alike(param, item)


def large_param_changes(params: type[msgspec.Struct]) -> Iterator[Change]:
    """Yield lists of numbers that are longer than the tiles of a kernel."""
    described = inspect.type_info(params)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        if isinstance(getattr(field.type, "item_type", None), inspect.IntType):
            param = field.encode_name
            for count in LARGE:
                longer = _of_list(partial(cycle, count=count))
                yield _of_param(param, param, f"repeated to {count}", "repeated", longer)


def laid_out(params: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the integers among parameters of this type that are sizes of tensors."""
    described = inspect.type_info(params)
    assert isinstance(described, inspect.StructType)
    return tuple(field.encode_name for field in described.fields if _is_size(field.type))


def counts_tokens(params: type[msgspec.Struct]) -> bool:
    """True if query lengths among parameters of this type are numbers of any magnitude."""
    described = inspect.type_info(params)
    assert isinstance(described, inspect.StructType)
    kinds = {field.encode_name: field.type for field in described.fields}
    item = getattr(kinds.get("query_lens"), "item_type", None)
    return isinstance(item, inspect.IntType) and _range(item)[1] >= _MOST_VALUE


def _is_size(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(map(_is_size, kind.types))
    return isinstance(kind, inspect.IntType) and _MOST_CODE < _range(kind)[1] < _MOST_VALUE


def _of_param(feature: str, param: str, name: str, group: str, change: _Value) -> Change:
    def apply(case: Case) -> Case | None:
        value = change(case, case.params.get(param))
        if value is None and name != "None":
            return None
        return msgspec.structs.replace(case, params={**case.params, param: value})

    return Change(feature, f"{param} {name}", f"{param} {group}", apply)


def _changes(kind: inspect.Type) -> Iterator[_Named]:
    """Yield values of a type by name; each is a function of the case and the value before."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _changes(each)
    elif isinstance(kind, inspect.NoneType):
        yield "None", "None", lambda _case, _value: None
    elif isinstance(kind, inspect.BoolType):
        for flag in (False, True):
            yield str(flag), str(flag), _constant(flag)
    elif isinstance(kind, inspect.LiteralType):
        for choice in kind.values:
            yield repr(choice), repr(choice), _constant(choice)
    elif isinstance(kind, inspect.FloatType):
        for ratio in _RATIOS:
            yield str(ratio), str(ratio), _constant(ratio)
    elif isinstance(kind, inspect.IntType):
        yield from _numbers(kind)
    elif isinstance(kind, inspect.ListType):
        yield from _lists(kind.item_type)


def _numbers(kind: inspect.IntType) -> Iterator[_Named]:
    low, high = _range(kind)
    if high <= _MOST_CODE:
        for code in range(low, high + 1):
            yield str(code), str(code), _constant(code)
        return
    for number in critical(low, _most(high)):
        yield str(number), near(number), _constant(number)
    for name, own in _OWN.items():
        for edge in (-1, 0, 1):
            yield f"{name} {edge:+d}", name, _relative(own, edge)


def _lists(item: inspect.Type) -> Iterator[_Named]:
    yield from _orders()
    if isinstance(item, inspect.IntType):
        yield from _lists_of_numbers(item)
        yield from _lists_of_rows()


def _lists_of_numbers(kind: inspect.IntType) -> Iterator[_Named]:
    low, high = _range(kind)
    for count in (*NUMBERS, *FULL):
        yield f"repeated to {count}", "repeated", _of_list(partial(cycle, count=count))
    yield "all equal", "all equal", _of_list(lambda values: values[:1] * len(values))
    yield "equal on average", "equal on average", _of_list(partial(_uneven, low=low))
    for factor in _FACTORS:
        odd = _of_list(partial(_odd_multiples, factor=factor))
        yield f"odd multiples of {factor}", f"odd multiples of {factor}", odd
    for number in sorted({low, *critical(low, _most(high))}):
        yield (
            f"first {number}",
            f"first near {near(number)}",
            _of_list(partial(_with_first, first=number)),
        )
        yield (
            f"last {number}",
            f"last near {near(number)}",
            _of_list(partial(_with_last, last=number)),
        )


def _orders() -> Iterator[_Named]:
    """Yield values of a list of anything: in another order, and with an entry twice."""
    yield "reversed", "reversed", _of_list(lambda values: values[::-1])
    yield "rotated", "rotated", _of_list(lambda values: [*values[1:], values[0]])
    yield "first twice", "first twice", _of_list(lambda values: [values[0], *values])
    inner = _of_list(lambda values: [*values[:1], *reversed(values[1:-1]), *values[1:][-1:]])
    yield "inner ones reversed", "inner ones reversed", inner


def _bounded(kind: inspect.Type, others: Iterable[inspect.Field]) -> Iterator[_Named]:
    """Yield lists cut off at another parameter, at a product of two, and beside both."""
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _bounded(each, others)
    if isinstance(getattr(kind, "item_type", None), inspect.IntType):
        numbers = [field.encode_name for field in others if _is_number(field)]
        for names in (*combinations(numbers, 1), *combinations(numbers, 2)):
            words = f"at most {' times '.join(names)}"
            for edge in (-1, 0, 1):
                yield f"{words} {edge:+d}", words, partial(_at_most, names=names, edge=edge)


def _is_number(field: inspect.Field) -> bool:
    """True if the parameter is an integer with a meaning as a number: no code, no seed."""
    kind = field.type
    if not isinstance(kind, inspect.IntType) or field.encode_name in _UNCHANGED:
        return False
    return kind.le is None or kind.le > _MOST_CODE


def _at_most(case: Case, values: Any, names: Sequence[str], edge: int) -> list[int] | None:
    params = [case.params.get(name) for name in names]
    factors = [value for value in params if isinstance(value, int)]
    if not isinstance(values, list) or not values or len(factors) < len(names):
        return None
    most = max(0, prod(factors) + edge)
    return [min(value, most) for value in values]


def _structs(param: str, kind: inspect.StructType) -> Iterator[Change]:
    """Yield values of one field of the first or last entry of a list, of two, or of all of them.

    Each field is a feature: a case may get values of several.
    """
    for field in kind.fields:
        for name, group, change in _changes(field.type):
            for place, which in _PLACES.items():
                yield _of_param(
                    f"{param} {field.encode_name}",
                    param,
                    f"{field.encode_name} of the {place}: {name}",
                    f"{field.encode_name} of the {place}: {group}",
                    _of_field(which, field.encode_name, change),
                )


def _alike(param: str, kind: inspect.StructType) -> Iterator[Change]:
    """Yield lists of entries like the first one, also with a field of the inner ones changed by 1.

    A fast path that looks at the two ends takes such a list for regular.
    """
    integers = [f.encode_name for f in kind.fields if isinstance(f.type, inspect.IntType)]
    for field in ("", *(name for name in integers if name not in _IDENTITIES)):
        for step in (-1, 1) if field else (0,):
            name = f"as the first, inner {field} {step:+d}" if field else "as the first"
            yield _of_param(f"{param} alike", param, name, name, _as_first(field, step))


def _as_first(field: str, step: int) -> _Value:
    def changed(_case: Case, entries: Any) -> Any:
        if not isinstance(entries, list) or len(entries) < 3:
            return None
        alike = [{**entries[0], **_identity(entry)} for entry in entries]
        for entry in alike[1:-1] if field else ():
            if entry.get(field, 0) + step < 0:
                return None
            entry[field] = entry.get(field, 0) + step
        return alike

    return changed


def _identity(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in _IDENTITIES if name in entry}


_IDENTITIES = ("slot",)
"""Fields that tell the entries of a list apart."""
_PLACES = {
    "first": slice(0, 1),
    "last": slice(-1, None),
    "last two": slice(-2, None),
    "whole list": slice(None),
}


def _of_field(which: slice, field: str, change: _Value) -> _Value:
    def changed(case: Case, entries: Any) -> Any:
        if not isinstance(entries, list) or not entries:
            return None
        altered = list(entries)
        for index in range(len(entries))[which]:
            value = change(case, altered[index][field]) if field in altered[index] else None
            if value is None:
                return None
            altered[index] = {**altered[index], field: value}
        return altered

    return changed


_OF_ROWS: dict[str, Callable[[int, int, int], int]] = {
    "at the first block": lambda _query, _computed, block: block,
    "at the context": lambda _query, computed, _block: computed,
    "at the context's block": lambda _query, computed, block: computed // block * block,
    "at the last block": lambda query, computed, block: (query + computed) // block * block,
    "at the end": lambda query, computed, _block: query + computed,
}
"""Functions from a request's query and computed tokens and the block size to its entry."""


def _lists_of_rows() -> Iterator[_Named]:
    """Yield lists of one entry for each request, at an edge of its blocks or lengths."""
    for name, entry in _OF_ROWS.items():
        for edge in (-1, 0, 1):
            yield f"{name} {edge:+d}", name, _of_rows(entry, edge)


def _of_rows(entry: Callable[[int, int, int], int], edge: int) -> _Value:
    def entries_of(case: Case, _value: Any) -> list[int] | None:
        if case.batch is None or not case.batch.num_requests:
            return None
        block = case.batch.block_size
        entries = [max(0, entry(q, c, block) + edge) for q, c in _lengths(case)]
        return entries + [0] * case.batch.padded_requests

    return entries_of


def _of_list(change: Callable[[list[int]], list[int]]) -> _Value:
    """Return the change of a list, None for an empty one or for another value."""
    return lambda _case, value: change(value) if isinstance(value, list) and value else None


def _uneven(values: list[int], low: int) -> list[int]:
    return uneven(max(values[0], low + 1), len(values))


def _odd_multiples(values: list[int], factor: int) -> list[int]:
    """Return near multiples of the factor that are none of twice the factor."""
    return [(value // factor // 2 * 2 + 1) * factor for value in values]


def _with_first(values: list[int], first: int) -> list[int]:
    return [first, *values[1:]]


def _with_last(values: list[int], last: int) -> list[int]:
    return [*values[:-1], last]


def _relative(own: Callable[[Case], int], edge: int) -> _Value:
    return lambda case, _value: own(case) + edge


def _range(kind: inspect.IntType) -> tuple[int, int]:
    return kind.ge or 0, _MOST_VALUE if kind.le is None else kind.le


def _most(high: int) -> int:
    """Return the maximum to use: values go to their limits, things in memory do not."""
    if high >= _MOST_VALUE:
        return high
    return min(high, _MOST_TOKENS if high >= 2**17 else _MOST_LAID_OUT)


def _constant(value: Any) -> _Value:
    return lambda _case, _value: value
