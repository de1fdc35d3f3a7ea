"""Oracle 2, invariants, part 2: the outputs of related batches follow from each other.

Bug classes: a mistake that reference and candidate share; entries that depend on another
request, on padding, on where a prefill is cut, or on a block's id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from attnproof.harness.cases.variation import related
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.equality import difference, same
from attnproof.harness.oracles.invariants import NAME
from attnproof.harness.oracles.value_text import brief

PARTS = "does not follow from the batch's parts"
CHUNKS = "does not follow from the chunks of a prefill"
BLOCKS = "depends on the ids of the blocks"
Outputs = Mapping[Place, Any]
"""Outputs of a call."""
Judge = Callable[..., Iterator[Failure]]
"""Function from the outputs of a case and those of each related case to failures."""


def related_cases(operation: Operation, case: Case) -> list[tuple[tuple[Case, ...], Judge]]:
    """Return cases whose outputs follow from each other's, with the function that judges them."""
    relations = operation.contract.relations
    if relations is None or case.batch is None:
        return []
    checks: list[tuple[tuple[Case, ...], Judge]] = []
    if parts := related.parts(case, relations):
        checks.append((parts, partial(_judge_parts, operation, parts[0])))
    if Joined.TOKENS in relations.joined.values() and (chunks := related.chunks(case, relations)):
        checks.append((chunks, partial(_judge_chunks, operation)))
    new = related.renaming(case.batch)
    if new and (relations.blocks or relations.slots):
        renamed = replace(case, batch=related.renamed(case.batch, new))
        checks.append(((renamed,), partial(_judge_renamed, operation, new, case.batch.block_size)))
    return checks


def _judge_parts(
    operation: Operation, before: Case, whole: Outputs, first: Outputs, second: Outputs
) -> Iterator[Failure]:
    """Yield a failure for each output that does not begin as those of the parts.

    `before` is the case of the first part.
    """
    for place, how in _joined(operation, whole):
        yield from _compared(
            operation, PARTS, place, whole, _join(how, place, first, second, before)
        )


def _judge_chunks(
    operation: Operation, whole: Outputs, first: Outputs, second: Outputs
) -> Iterator[Failure]:
    """Yield a failure for each token's entry that another cut of a prefill changes."""
    for place, how in _joined(operation, whole):
        if how is Joined.TOKENS:
            joined = _cat(first.get(place), second.get(place), 0)
            yield from _compared(operation, CHUNKS, place, whole, joined)


def _judge_renamed(
    operation: Operation, new: Mapping[int, int], block_size: int, first: Outputs, renamed: Outputs
) -> Iterator[Failure]:
    """Yield a failure for each output that the `new` ids change otherwise than where they are."""
    relations = operation.contract.relations
    assert relations is not None
    for place, value in first.items():
        expected = value
        if place.root in relations.blocks:
            expected = _mapped(value, new, 1)
        elif place.root in relations.slots:
            expected = _mapped(value, new, block_size)
        yield from _compared(operation, BLOCKS, place, renamed, expected)


def _joined(operation: Operation, whole: Outputs) -> Iterator[tuple[Place, Joined]]:
    relations = operation.contract.relations
    assert relations is not None
    for place in whole:
        if place.root in relations.joined:
            yield place, relations.joined[place.root]


def _join(how: Joined, place: Place, first: Outputs, second: Outputs, before: Case) -> Any:
    entries: Any = first.get(place)
    other: Any = second.get(place)
    if how is Joined.OFFSETS:
        last = 0 if not _is_array(entries) or not len(entries) else int(entries[-1])
        return _cat(entries, other[1:] if _is_array(other) else other, last)
    added = {Joined.TOKEN_INDICES: before.num_tokens, Joined.ROW_INDICES: before.num_requests}
    return _cat(entries, other, added.get(how, 0))


def _cat(entries: Any, other: Any, added: int) -> Any:
    """Return the entries of both, `added` to the second one's; None if one is no tensor."""
    if isinstance(entries, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.cat([entries, other + added])
    if isinstance(entries, np.ndarray) and isinstance(other, np.ndarray):
        return np.concatenate([entries, other + added])
    return None


def _mapped(value: Any, new: Mapping[int, int], tokens: int) -> Any:
    """Return the value with other ids, each of `tokens` entries; ids without a new one stay."""
    if not _is_array(value) or not new:
        return value
    flat = int64_array(value)
    old_ids, new_ids = (np.array(list(ids)) for ids in (new.keys(), new.values()))
    ids, offsets = np.divmod(flat, tokens)
    index = np.searchsorted(old_ids, ids).clip(max=len(old_ids) - 1)  # in ascending order
    mapped = np.where(old_ids[index] == ids, new_ids[index] * tokens + offsets, flat)
    if isinstance(value, torch.Tensor):
        return torch.from_numpy(mapped).to(value)
    return mapped.astype(value.dtype)


def _compared(
    operation: Operation, diagnosis: str, place: Place, outputs: Outputs, expected: Any
) -> Iterator[Failure]:
    got = outputs.get(place)
    if expected is None or got is None:
        return
    if diagnosis != BLOCKS:
        got = got[: len(expected)]
    if same(expected, got):
        return
    index, text = difference(operation, place, expected, got)
    yield Failure(
        oracle=NAME,
        field=place.root,
        diagnosis=diagnosis,
        message=f"{place.field} {diagnosis}: {text}",
        expected=brief(expected),
        got=brief(got),
        place=place,
        index=index,
    )


def _is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)
