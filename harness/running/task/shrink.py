"""Shrink a failing case that Hypothesis did not draw, or did not shrink completely.

Greedy: take the first simpler case that still fails in the same way, until none does.
An operation computes arguments that depend on the batch when it prepares the call, so every
batch fits the case's other arguments. A meaningless case counts as one that does not fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.running.case_check import problem_of

_Entries = TypeVar("_Entries", list[Any], tuple[Case, ...])
SHRINK_SECONDS = 30.0
"""Usual time limit of shrinking one finding."""
_WORK = 2_000_000
"""Limit on the requests and tokens of all tries together: large cases get fewer tries."""


def shrink(
    case: Case, fails: Callable[[Case], bool], tries: int, seconds: float = SHRINK_SECONDS
) -> Case:
    """Return the smallest case found for which `fails` holds, after at most `tries` calls."""
    end = time.monotonic() + seconds
    seen, work = {case.id}, _WORK
    progress = True
    while progress:
        progress = False
        for smaller in simpler(case):
            if smaller.id in seen or is_emptier(smaller, case) or problem_of(smaller):
                continue
            seen.add(smaller.id)
            tries -= 1
            work -= smaller.num_requests + smaller.num_tokens
            if tries < 0 or work < 0 or time.monotonic() > end:
                return case
            if fails(smaller):
                case, progress = smaller, True
                break
    return case


def is_emptier(smaller: Case, case: Case) -> bool:
    """True if the smaller case has no token, which hides a mistake that needs none."""
    return bool(case.num_tokens) and not smaller.num_tokens


def simpler(case: Case) -> Iterator[Case]:
    """Yield simpler cases, the largest reductions first."""
    for before in _shorter(case.before):
        yield msgspec.structs.replace(case, before=before)
    if case.batch is not None:
        for batch in _simpler_batches(case.batch):
            yield msgspec.structs.replace(case, batch=batch)
        yield from _with_cuts(case, case.batch)
    # Numbers before lists: a shorter range makes many list entries unnecessary at once.
    for name, value in sorted(case.params.items(), key=lambda item: isinstance(item[1], list)):
        for simple in _simpler_values(value):
            yield msgspec.structs.replace(case, params=case.params | {name: simple})
    yield from _fewer_steps(case)


def _fewer_steps(case: Case) -> Iterator[Case]:
    """Yield the case without a step, or up to three in a row, and with smaller numbers.

    A later step may name something by its place, which moves. A pool that has to be full, as in
    a manager of blocks, is as large as its steps are many.
    """
    steps = case.params.get("steps", [])
    for index in range(len(steps)):
        for moved in _moved(steps[index + 1 :]):
            params = case.params | {"steps": steps[:index] + moved}
            yield msgspec.structs.replace(case, params=params)
    numbers = {name: value for name, value in case.params.items() if type(value) is int}
    for width in (3, 2, 1):
        for start in range(len(steps) - width + 1):
            fewer = {"steps": steps[:start] + steps[start + width :]}
            for name, value in numbers.items():
                for smaller in (value // 2, value - 1) if value > 1 else ():
                    params = case.params | fewer | {name: smaller}
                    yield msgspec.structs.replace(case, params=params)


def _moved(steps: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the steps with a number reduced by one wherever it is not below some value."""
    pairs = {(name, item) for step in steps for name, item in step.items() if type(item) is int}
    for name, least in sorted(pair for pair in pairs if pair[1] > 0):
        yield [
            step | {name: step[name] - 1}
            if type(step.get(name)) is int and step[name] >= least
            else step
            for step in steps
        ]


def _with_cuts(case: Case, batch: Batch) -> Iterator[Case]:
    """Yield the case with a shorter or no request, and its cuts where they were in the others."""
    cuts = case.params.get("cuts")
    if not isinstance(cuts, list) or not cuts:
        return
    starts = [0, *accumulate(batch.query_lens)]
    for row, length in enumerate(batch.query_lens):
        for shorter in (None, *_smaller(length)):
            if shorter is None:
                smaller = _without(batch, range(row, row + 1))
            else:
                lengths = _with(batch.query_lens, row, shorter)
                smaller = _rebuilt(batch, lengths, batch.computed_lens)
            left = starts[row] + (shorter or 0)
            moved = [
                cut if cut <= starts[row] else max(min(cut, left), cut - length + (shorter or 0))
                for cut in cuts
            ]
            params = case.params | {"cuts": [cut for cut in moved if cut > 0]}
            yield msgspec.structs.replace(case, batch=smaller, params=params)


def _simpler_batches(batch: Batch) -> Iterator[Batch]:
    if batch.subclassed or batch.later:
        yield msgspec.structs.replace(batch, subclassed=False, later=False, prompt_lens=None)
    rows = width = batch.num_requests
    while width:
        for start in range(0, rows, width):
            yield _without(batch, range(start, min(rows, start + width)))
        width //= 2
    yield from _plainer(batch)
    for row in range(rows):
        for query_len in _smaller(batch.query_lens[row]):
            yield _rebuilt(batch, _with(batch.query_lens, row, query_len), batch.computed_lens)
        for computed in _smaller(batch.computed_lens[row]):
            yield _rebuilt(batch, batch.query_lens, _with(batch.computed_lens, row, computed))
    ascending = _rebuilt(batch, batch.query_lens, batch.computed_lens)
    if ascending != batch:
        yield ascending


def _plainer(batch: Batch) -> Iterator[Batch]:
    """Yield the batch with one optional feature removed or reduced to 1."""
    for name, plain in (
        ("padded_requests", 0),
        ("padded_tokens", 0),
        ("spare_columns", 0),
        ("spare_slots", 0),
        ("query_slack", 0),
        ("seq_slack", 0),
        ("dtype", "int32"),
        ("strided", False),
        ("causal", True),
        ("logits_indices", None),
        ("logits_padding", 0),
        ("num_logits", None),
        ("bound_slack", 0),
        ("prompt_lens", None),
        ("encoder_seq_lens", None),
        ("dcp_local_seq_lens", None),
    ):
        value = getattr(batch, name)
        if value != plain:
            yield _resized(msgspec.structs.replace(batch, **{name: plain}))
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            yield _resized(msgspec.structs.replace(batch, **{name: 1}))


def _smaller(value: int) -> Iterator[int]:
    for simple in (0, 1, value // 2, value - 1):
        if 0 <= simple < value:
            yield simple


def _with(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _without(batch: Batch, rows: range) -> Batch:
    def keep(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(value for row, value in enumerate(values) if row not in rows)

    return _resized(
        msgspec.structs.replace(
            batch,
            query_lens=keep(batch.query_lens),
            computed_lens=keep(batch.computed_lens),
            blocks=keep(batch.blocks),
            prompt_lens=None if batch.prompt_lens is None else keep(batch.prompt_lens),
        )
    )


def _rebuilt(batch: Batch, query_lens: tuple[int, ...], computed: tuple[int, ...]) -> Batch:
    """Return the batch with other lengths.

    A row keeps its first blocks; a longer row, or unchanged lengths, get ascending ids.
    """
    plain = make_batch(list(query_lens), list(computed), batch.block_size)
    blocks = tuple(
        old[: len(new)] if len(new) <= len(old) else new
        for old, new in zip(batch.blocks, plain.blocks, strict=True)
    )
    same = (query_lens, computed) == (batch.query_lens, batch.computed_lens)
    changed = msgspec.structs.replace(
        batch,
        query_lens=query_lens,
        computed_lens=computed,
        blocks=plain.blocks if same else blocks,
    )
    return _resized(changed)


def _resized(batch: Batch) -> Batch:
    """Return the batch with its optional fields cut or filled to its rows and tokens."""
    rows = batch.num_requests + batch.padded_requests
    tokens = batch.num_tokens + batch.padded_tokens
    changes: dict[str, Any] = {}
    for name in ("encoder_seq_lens", "dcp_local_seq_lens"):
        values = getattr(batch, name)
        if values is not None:
            changes[name] = (*values, *[0] * rows)[:rows]
    if batch.logits_indices is not None:
        changes["logits_indices"] = tuple(i for i in batch.logits_indices if i < tokens)
    return msgspec.structs.replace(batch, **changes)


def _shorter(values: _Entries) -> Iterator[_Entries]:
    """Yield the values without a part of them, the largest parts first."""
    width = len(values)
    while width:
        for start in range(0, len(values), width):
            yield values[:start] + values[start + width :]
        width //= 2


def _simpler_values(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int):
        yield from _smaller(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            for simple in _simpler_items(name, item):
                yield value | {name: simple}
    elif isinstance(value, list):
        yield from _shorter(value)
        for index, item in enumerate(value):
            for simple in _simpler_values(item):
                yield [*value[:index], simple, *value[index + 1 :]]


def _simpler_items(name: str, value: Any) -> Iterator[Any]:
    """Yield simpler values of a field: the batch of a step as one."""
    if name != "batch" or not isinstance(value, dict):
        yield from _simpler_values(value)
        return
    for batch in _simpler_batches(msgspec.convert(value, Batch)):
        yield msgspec.to_builtins(batch)
