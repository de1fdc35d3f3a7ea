"""Another case of the same shapes: what a later engine step would bring."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import replace

from attnproof.harness.cases.variation.neighbours import (
    with_idle_row,
    with_live_padding,
    with_moved_token,
)
from attnproof.harness.cases.variation.related import renamed, renaming
from attnproof.harness.model.case import Batch, Case


def other_values(case: Case, problem: Callable[[Case], str], count: int) -> list[Case]:
    """Return up to `count` well-formed cases near this one: the same sizes, other values.

    They follow from the case alone. `problem` returns why a case cannot be run, "" if it can.
    """
    others: dict[str, Case] = {}
    for other in _others(replace(case, fault="")):
        if len(others) == count:
            break
        if other != case and other.id not in others and not problem(other):
            others[other.id] = other
    return list(others.values())


def other_options(case: Case, problem: Callable[[Case], str], count: int) -> list[Case]:
    """Return up to `count` well-formed cases with one flag changed, or one list of names emptied.

    They follow from the case alone, as `other_values` do.
    """
    others: list[Case] = []
    for name, value in sorted(case.params.items()):
        named = isinstance(value, list) and value and isinstance(value[0], str)
        if not named and type(value) is not bool:
            continue
        changed = case.params | {name: [] if named else not value}
        other = replace(case, fault="", params=changed)
        if len(others) < count and not problem(other):
            others.append(other)
    return others


def _others(case: Case) -> Iterator[Case]:
    if case.batch is not None:
        for change in (
            lambda batch: _longer(_reversed(_renamed(batch))),
            lambda batch: _longer(_renamed(with_moved_token(batch))),
            lambda batch: _renamed(with_live_padding(batch)),
            lambda batch: _renamed(with_idle_row(batch)),
            lambda batch: _longer(_renamed(batch)),
            _reversed,
            _renamed,
            _longer,
        ):
            yield replace(case, batch=change(case.batch))
    for change_value in (_reordered, _increased):
        changed = {name: change_value(value) for name, value in case.params.items()}
        yield replace(case, params=changed)
        for name, value in sorted(changed.items()):
            if value != case.params[name]:
                yield replace(case, params=case.params | {name: value})


def _reversed(batch: Batch) -> Batch:
    """Return the batch with its requests in the opposite order."""
    fields: dict[str, Any] = {
        "query_lens": batch.query_lens[::-1],
        "computed_lens": batch.computed_lens[::-1],
        "blocks": batch.blocks[::-1],
    }
    for name in ("encoder_seq_lens", "dcp_local_seq_lens", "prompt_lens"):
        values = getattr(batch, name)
        if values is not None:
            rows = batch.num_requests
            fields[name] = (*values[:rows][::-1], *values[rows:])
    return replace(batch, **fields)


def _renamed(batch: Batch) -> Batch:
    """Return the batch with other block ids, no larger than those of the batch plus one."""
    return renamed(batch, renaming(batch))


def _longer(batch: Batch) -> Batch:
    """Return the batch with one computed token more in each request that has room for it."""
    rows = zip(batch.query_lens, batch.computed_lens, batch.blocks, strict=True)
    computed = tuple(
        context + int(query + context < len(blocks) * batch.block_size)
        for query, context, blocks in rows
    )
    return replace(batch, computed_lens=computed)


def _reordered(value: Any) -> Any:
    return value[::-1] if isinstance(value, list) else value


def _increased(value: Any) -> Any:
    if isinstance(value, list):
        return [_increased(item) for item in value]
    return value + 1 if type(value) is int else value
