"""Cases that an engine may make, next to failing cases of no engine.

A mistake whose first failing case is no engine's would be advice only, although batches of an
engine may show it as well. So the nearest of them are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from attnproof.harness.cases.batches.real import real_batch
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.operations.derived.params import LAYOUT
from attnproof.harness.operations.derived.steps import with_real_batches
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.task.examination import Examination

_MOST_OF_A_CAUSE = 5
"""Cases that are run for one root cause."""


def real_cases(examination: Examination) -> list[Sourced]:
    """Return the nearest cases of an engine for each root cause that only other cases show."""
    operation = examination.operation
    nearest: dict[str, Sourced] = {}
    for occurrence in examination.counts.advised.values():
        case = occurrence.smallest.case
        usual = msgspec.structs.replace(occurrence.failure, other_kind=None).kind
        is_judged = usual in examination.candidate.judged
        if case.fault or not is_judged or not operation.why_unreal(case):
            continue
        # First the problems: why_unreal reads parameters of the types that the case declares.
        real = (
            other
            for other in _neighbours(case)
            if not problem_of(other) and not operation.why_unreal(other)
        )
        for other in islice(real, _MOST_OF_A_CAUSE):
            nearest.setdefault(other.id, Sourced(other, "boundary", "as an engine makes it"))
    return list(nearest.values())


def _neighbours(case: Case) -> Iterator[Case]:
    """Yield the case with a batch and memory of an engine, and with one other argument changed."""
    layout = case.params.get(LAYOUT)
    if isinstance(layout, dict) and layout:
        case = msgspec.structs.replace(case, params=case.params | {LAYOUT: {}})
        yield case
    if case.batch is not None:
        case = msgspec.structs.replace(case, batch=real_batch(case.batch))
        yield case
    with_real = with_real_batches(case)
    if with_real is not case:
        case = with_real
        yield case
    for name, value in sorted(case.params.items()):
        for other in _other_values(value):
            yield msgspec.structs.replace(case, params=case.params | {name: other})


def _other_values(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, 1)
    if value is not None:
        yield None
