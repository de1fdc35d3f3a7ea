"""Cases of the size and cost of another one, with values that no earlier call had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from attnproof.harness.cases.variation.related import renamed
from attnproof.harness.model.case import Batch, Case

_TRIES = 2
"""Draws of one kind for each case that is wanted."""
_LESS = 3
"""Most computed tokens that a request loses."""
_PER_ROW = ("encoder_seq_lens", "dcp_local_seq_lens", "prompt_lens")


def unseen(case: Case, problem: Callable[[Case], str], lot: Random, count: int) -> list[Case]:
    """Return up to `count` well-formed cases whose values differ from each other and from `case`.

    Requests and lists are in another order, in which decodes stay where decodes are, contexts and
    one prefill are a few tokens shorter, and blocks have other ids, as far as `problem` allows:
    it returns why a case cannot be run, "" if it can.
    """
    found: dict[str, Case] = {}
    for change in (_shorter, _everything, _batch, _blocks, _lists):
        for _ in range(_TRIES * count):
            other = change(case, lot)
            if other == case or other.id in found:
                continue
            if not problem(other):
                found[other.id] = other
            elif not found:
                break  # this kind does not fit the operation
            if len(found) == count:
                return list(found.values())
    return list(found.values())


def _shorter(case: Case, lot: Random) -> Case:
    """Return the case with a shorter prefill, and all other changes."""
    batch = case.batch
    prefills = [row for row, query in enumerate(batch.query_lens) if query > 1] if batch else []
    if batch is None or not prefills:
        return case
    queries, row = list(batch.query_lens), prefills[-1]
    queries[row] = lot.randint(queries[row] - queries[row] // 8, queries[row])
    return _everything(replace(case, batch=replace(batch, query_lens=tuple(queries))), lot)


def _everything(case: Case, lot: Random) -> Case:
    """Return the case with other rows and lists; a list with an entry a row follows the rows."""
    if case.batch is None:
        return _lists(case, lot)
    order = _order(case.batch, lot)
    params = _reordered(case.params, {len(order): order}, lot)
    return replace(case, params=params, batch=_with(case.batch, order, lot))


def _batch(case: Case, lot: Random) -> Case:
    if case.batch is None:
        return case
    return replace(case, batch=_with(case.batch, _order(case.batch, lot), lot))


def _blocks(case: Case, lot: Random) -> Case:
    return case if case.batch is None else replace(case, batch=_other_blocks(case.batch, lot))


def _lists(case: Case, lot: Random) -> Case:
    return replace(case, params=_reordered(case.params, {}, lot))


def _order(batch: Batch, lot: Random) -> list[int]:
    """Return another order of the rows, in which decodes take the places of decodes."""
    order = list(range(batch.num_requests))
    for decodes in (True, False):
        rows = [row for row in order if (batch.query_lens[row] == 1) is decodes]
        for row, other in zip(rows, lot.sample(rows, len(rows)), strict=True):
            order[row] = other
    return order


def _with(batch: Batch, order: Sequence[int], lot: Random) -> Batch:
    """Return the batch with its rows in this order, shorter contexts and other blocks."""
    computed = [
        context - lot.randint(0, min(_LESS, context - 1)) if context else 0
        for context in batch.computed_lens
    ]
    pairs = zip(batch.query_lens, computed, batch.blocks, strict=True)
    rows = [(q, c, live[: -(-(q + c) // batch.block_size)]) for q, c, live in pairs]
    fields: dict[str, Any] = {}
    for name in _PER_ROW:
        values = getattr(batch, name)
        if values is not None:
            fields[name] = (*(values[row] for row in order), *values[len(order) :])
    queries, contexts, blocks = (
        zip(*(rows[row] for row in order), strict=True) if rows else ((),) * 3
    )
    moved = replace(batch, query_lens=queries, computed_lens=contexts, blocks=blocks, **fields)
    return _other_blocks(moved, lot)


def _other_blocks(batch: Batch, lot: Random) -> Batch:
    ids = sorted({block for row in batch.blocks for block in row})
    return renamed(batch, dict(zip(ids, lot.sample(ids, len(ids)), strict=True)))


def _reordered(params: dict[str, Any], orders: dict[int, Sequence[int]], lot: Random) -> Any:
    """Return the parameters with their lists in another order, the same for lists of one length."""
    orders, changed = dict(orders), dict(params)
    for name, value in params.items():
        if isinstance(value, list):
            order = orders.setdefault(len(value), lot.sample(range(len(value)), len(value)))
            changed[name] = [value[index] for index in order]
    return changed
