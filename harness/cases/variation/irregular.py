"""Cases that are just not regular: what a fast path takes for a regular case by a few numbers.

A list is regular if it is equal throughout, has a constant step, or is a permutation of 0 to
n - 1. A test of its ends, its sum, its middle or its count takes the lists of this module for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from random import Random
from typing import Any

from msgspec.structs import replace

from attnproof.harness.cases.variation.rows import repeated, rows_of, with_rows
from attnproof.harness.model.case import Case

_ROWS = 6
"""Least number of rows: with fewer, a changed one is at an end or beside the middle."""
_FEWEST = 4
"""Least number of entries of a list, of which two are at no end."""
_Disturb = Callable[[list[int]], list[int]]
_Variants = Iterator[tuple[str, Case, Case]]
"""Names of ways, the regular case and the disturbed one."""


def irregular(
    cases: Sequence[Case], seed: int, is_fit: Callable[[Case, Case], bool]
) -> Iterator[tuple[str, Case]]:
    """Yield the cases with one of their regular lists disturbed, with their names.

    Lists of one name take turns with those of the others, and cases do, in their order. `is_fit`
    has the regular and the disturbed case; those that do not fit are left out.
    """
    random, ids = Random(seed), {case.id for case in cases}
    lists: dict[str, list[_Variants]] = {}
    for case in cases:
        for name, longer, change in _lists_of(case):
            lists.setdefault(name, []).append(_disturbed(name, longer, change, random))
    while lists:
        for name, waiting in [*lists.items()]:
            fit = _next_fit(waiting, ids, is_fit)
            if fit is None:
                del lists[name]
            else:
                yield fit


def _next_fit(
    waiting: list[_Variants], ids: set[str], is_fit: Callable[[Case, Case], bool]
) -> tuple[str, Case] | None:
    """Return the next case that fits, of the case whose turn it is; None if there is none."""
    while waiting:
        variants = waiting.pop(0)
        for name, regular, case in variants:
            if case.id not in ids and is_fit(regular, case):
                ids.add(case.id)
                waiting.append(variants)
                return f"irregular: {name}", case
    return None


def _disturbed(
    name: str, case: Case, change: Callable[[Case, _Disturb], Case | None], random: Random
) -> _Variants:
    places = random.sample([*_PLACES], len(_PLACES))
    for how, place in product(_WAYS, places):  # those first that a test of a sum or a set misses
        changed = change(case, partial(_WAYS[how], place=_PLACES[place]))
        if changed is not None:
            yield f"{name} with {how} {place}", case, changed


def _lists_of(
    case: Case,
) -> Iterator[tuple[str, Case, Callable[[Case, _Disturb], Case | None]]]:
    """Yield the regular lists by name, each with the case and the function that disturbs it."""
    if case.batch is not None and case.num_requests > 1 and not case.batch.no_slots:
        if any(map(is_regular, case.batch.blocks)):
            yield "blocks", case, _with_blocks
        longer = case if case.num_requests >= _ROWS else repeated(_ROWS)(case)
        if longer is not None and longer.batch is not None:
            if is_regular(longer.batch.query_lens):
                yield "queries", longer, _with_queries
            if is_regular(longer.batch.computed_lens):
                yield "contexts", longer, _with_contexts
    for name, value in sorted(case.params.items()):
        if not isinstance(value, list) or len(value) < _FEWEST:
            continue
        if is_regular(value):
            yield name, case, _with_param(name, None)
        for key in _keys_of(value):
            if is_regular([entry[key] for entry in value]):
                yield f"{name} {key}", case, _with_param(name, key)


def _keys_of(entries: list[Any]) -> list[Any]:
    """Return the keys or the indices that all entries of a list have: pairs, fields."""
    if all(isinstance(entry, dict) for entry in entries):
        return [key for key in entries[0] if all(key in entry for entry in entries)]
    if all(isinstance(entry, list | tuple) for entry in entries):
        return [*range(min(map(len, entries)))]
    return []


def _with_queries(case: Case, disturb: _Disturb) -> Case | None:
    queries, contexts = _columns(case)
    return _with_columns(case, disturb(queries), contexts)


def _with_contexts(case: Case, disturb: _Disturb) -> Case | None:
    queries, contexts = _columns(case)
    return _with_columns(case, queries, disturb(contexts))


def _columns(case: Case) -> tuple[list[int], list[int]]:
    assert case.batch is not None
    queries, contexts = zip(*rows_of(case.batch), strict=True)
    return [*queries], [*contexts]


def _with_columns(case: Case, queries: list[int], contexts: list[int]) -> Case | None:
    rows = [*zip(queries, contexts, strict=True)]
    return with_rows(case, rows) if min(map(min, rows)) >= 0 else None


def _with_blocks(case: Case, disturb: _Disturb) -> Case | None:
    batch = case.batch
    assert batch is not None
    blocks = tuple(tuple(disturb([*row])) if is_regular(row) else row for row in batch.blocks)
    if any(min(row, default=0) < 0 or len(set(row)) < len(row) for row in blocks):
        return None
    return replace(case, batch=replace(batch, blocks=blocks))


def _with_param(name: str, key: Any) -> Callable[[Case, _Disturb], Case]:
    """Return the change of a list, or of what its entries have at the key."""

    def change(case: Case, disturb: _Disturb) -> Case:
        values = case.params[name]
        if key is None:
            changed: list[Any] = disturb(values)
        else:
            new = disturb([entry[key] for entry in values])
            changed = [_with_item(*pair, key) for pair in zip(values, new, strict=True)]
        return replace(case, params=case.params | {name: changed})

    return change


def _with_item(entry: Any, item: int, key: Any) -> Any:
    if isinstance(entry, dict):
        return {**entry, key: item}
    return [*entry[:key], item, *entry[key + 1 :]]


def is_regular(values: Sequence[object]) -> bool:
    """True if the list has integers only, which are equal, of a constant step or a permutation."""
    numbers = [value for value in values if type(value) is int]
    if len(numbers) < max(_FEWEST, len(values)):
        return False
    steps = {after - before for before, after in pairwise(numbers)}
    return len(steps) == 1 or sorted(numbers) == list(range(len(numbers)))


def _added(values: list[int], place: int, steps: tuple[int, ...]) -> list[int]:
    """Return the list with the steps added to the entries from a place on."""
    added = dict(enumerate(steps, place % len(values)))
    return [value + added.get(index, 0) for index, value in enumerate(values)]


def _swapped(values: list[int], place: int) -> list[int]:
    """Return the list with the entry at a place and the next one swapped."""
    first = place % len(values)
    return [*values[:first], values[first + 1], values[first], *values[first + 2 :]]


_WAYS: dict[str, Callable[..., list[int]]] = {
    "one moved": partial(_added, steps=(1, -1)),  # an equal sum
    "two swapped": _swapped,  # an equal set
    "one raised": partial(_added, steps=(1,)),  # a repeat, where the step is one
    "one lowered": partial(_added, steps=(-1,)),
}
_PLACES = {"early": 1, "late": -3}
"""First changed entry: at no end, and of six entries not in the middle."""
