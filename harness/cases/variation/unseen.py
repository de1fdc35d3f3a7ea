"""Cases of the size and cost of another one, with values that no earlier call had."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from msgspec.structs import replace

from attnproof.harness.cases.variation.related import renamed
from attnproof.harness.model.case import Batch, Case

_TRIES = 2
"""Draws of one kind for each wanted case, as draws may be equal."""
_LESS = 3
"""Most computed tokens that a request loses: few, so that the cost stays."""
_PER_ROW = ("encoder_seq_lens", "dcp_local_seq_lens", "prompt_lens")


def unseen(case: Case, problem: Callable[[Case], str], random: Random, count: int) -> list[Case]:
    """Return up to `count` well-formed cases whose values differ from each other and from `case`.

    Requests and lists are in another order, in which decodes stay where decodes are, query tokens
    have moved between extends, contexts are a few tokens shorter, and blocks have other ids, as
    far as `problem` allows: it returns why a case cannot be run, "" if it can. Shapes stay: code
    may be compiled for them.
    """
    cases: dict[str, Case] = {}
    for change in (_everything, _batch, _blocks, _lists):
        for _ in range(_TRIES * count):
            other = change(case, random)
            if other == case or other.id in cases:
                continue
            if not problem(other):
                cases[other.id] = other
            elif not cases:
                break  # this kind does not fit the operation
            if len(cases) == count:
                return list(cases.values())
    return list(cases.values())


def _everything(case: Case, random: Random) -> Case:
    """Return the case with other rows and lists; a list with an entry a row follows the rows."""
    if case.batch is None:
        return _lists(case, random)
    order = _order(case.batch, random)
    params = _reordered(case.params, {len(order): order}, random)
    return replace(case, params=params, batch=_with(case.batch, order, random))


def _batch(case: Case, random: Random) -> Case:
    if case.batch is None:
        return case
    return replace(case, batch=_with(case.batch, _order(case.batch, random), random))


def _blocks(case: Case, random: Random) -> Case:
    return case if case.batch is None else replace(case, batch=_other_blocks(case.batch, random))


def _lists(case: Case, random: Random) -> Case:
    return replace(case, params=_reordered(case.params, {}, random))


def _order(batch: Batch, random: Random) -> list[int]:
    """Return another order of the rows, in which decodes take the places of decodes."""
    order = list(range(batch.num_requests))
    for decodes in (True, False):
        rows = [row for row in order if (batch.query_lens[row] == 1) is decodes]
        for row, other in zip(rows, random.sample(rows, len(rows)), strict=True):
            order[row] = other
    return order


def _with(batch: Batch, order: Sequence[int], random: Random) -> Batch:
    """Return the batch with its rows in this order, shorter contexts and other blocks."""
    query_lens, computed = _moved(batch, random)
    computed = [
        context - random.randint(0, min(_LESS, context - 1)) if context else 0
        for context in computed
    ]
    pairs = zip(query_lens, computed, batch.blocks, strict=True)
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
    return _other_blocks(moved, random)


def _moved(batch: Batch, random: Random) -> tuple[list[int], list[int]]:
    """Return query and computed tokens after a move of query tokens from an extend to another.

    Lengths of sequences stay.
    """
    queries, computed = list(batch.query_lens), list(batch.computed_lens)
    # A prompt's first chunk has no context still.
    continued = [row for row, query in enumerate(queries) if query > 1 and computed[row] > 1]
    if len(continued) > 1:
        receiver, giver = random.sample(continued, 2)
        most = min(queries[giver] - 2, computed[receiver] - 1, 1 + queries[giver] // 8)
        for row, more in ((receiver, count := random.randint(0, max(0, most))), (giver, -count)):
            queries[row] += more
            computed[row] -= more
    return queries, computed


def _other_blocks(batch: Batch, random: Random) -> Batch:
    ids = sorted({block for row in batch.blocks for block in row})
    return renamed(batch, dict(zip(ids, random.sample(ids, len(ids)), strict=True)))


def _reordered(params: dict[str, Any], orders: dict[int, Sequence[int]], random: Random) -> Any:
    """Return the parameters with their lists in another order, the same for lists of one length."""
    orders, changed = dict(orders), dict(params)
    for name, value in params.items():
        if isinstance(value, list):
            order = orders.setdefault(len(value), random.sample(range(len(value)), len(value)))
            changed[name] = [value[index] for index in order]
    return changed
