"""The lengths, blocks and arguments of a case, as the features read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attnproof.harness.model.case import Batch, Case

Lengths = Sequence[int]


@dataclass(frozen=True)
class View:
    """A case in numbers; what the operation does not have is None."""

    query: Lengths | None
    """Query tokens of each request."""
    context: Lengths | None
    """Tokens of each request that are in the cache already."""
    seq: Lengths | None
    """Tokens of each sequence."""
    block_size: int | None
    batch: Batch | None
    params: dict[str, Any]


def view_of(case: Case) -> View:
    """Return the view of a case: of its batch, or of the arguments that describe requests."""
    batch, params = case.batch, case.params
    if batch is not None:
        query, context = batch.query_lens, batch.computed_lens
        return View(query, context, _sums(query, context), batch.block_size, batch, params)
    size = params.get("block_size")
    block_size = size if isinstance(size, int) and size > 0 else None
    rows = _rows(params)
    if rows is not None:
        return View(*rows, _sums(*rows), block_size, None, params)
    new, past = _list(params, "query_lens"), _list(params, "computed_lens")
    seq = _sums(new, past) if new and past else _list(params, "seq_lens", "lens")
    return View(new, past, seq, block_size, None, params)


def _rows(params: dict[str, Any]) -> tuple[Lengths, Lengths] | None:
    """Return query and context of the rows of a step, or of one sequence; None without."""
    rows = params.get("rows")
    if isinstance(rows, list) and rows and isinstance(rows[0], dict) and "query" in rows[0]:
        return [row["query"] for row in rows], [row["computed"] for row in rows]
    for first, last in (("context_len", "seq_len"), ("range_start", "range_end")):
        if first in params:
            past = params[first]
            length = params[last] - past if last in params else params.get("query_len", 0)
            return [max(0, length)], [past]
    return None


def _sums(query: Lengths, context: Lengths) -> list[int]:
    return [q + c for q, c in zip(query, context, strict=False)]


def _list(params: dict[str, Any], *names: str) -> list[int] | None:
    """Return the first of the arguments that is a list of lengths."""
    for name in names:
        value = params.get(name)
        if isinstance(value, (list, tuple)) and all(type(entry) is int for entry in value):
            return list(value)
    return None
