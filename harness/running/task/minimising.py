"""Shrink the case of a root cause, and the smallest case of each known deviation."""

from __future__ import annotations

from collections.abc import Callable

from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.verdict import PROCESS, Failure
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.task.certainty import is_death
from attnproof.harness.running.task.examination import Examination
from attnproof.harness.running.task.root_causes import Root
from attnproof.harness.running.task.shrink import shrink

_TRIES, _DEADLY_TRIES = 1500, 30
"""Cases that shrinking may try; fewer if each try kills a worker."""


def minimise(
    examination: Examination, failure: Failure, sourced: Sourced
) -> tuple[Failure, Sourced]:
    """Return the failure and the smallest case found that fails by the same root cause."""

    def fails(smaller: Sourced) -> Failure | None:
        failures = examination.judge_uncounted(smaller).unknown
        new = failures if examination.is_sequence else examination.roots.new_failures(failures)
        return next((other for other in new if other.root == failure.root), None)

    return shrink_failure(examination, failure, sourced, fails)


def minimise_known(examination: Examination) -> list[Sourced]:
    """Shrink the smallest case of each known deviation.

    Returns the tried cases with unexplained failures, one for each set of root causes. The
    condition of a deviation is then too narrow, or the candidate has another mistake.
    """
    others: dict[frozenset[Root], Sourced] = {}
    for name, occurrence in examination.counts.occurred.items():
        root = occurrence.failure.root

        def deviates(smaller: Sourced, name: str = name, root: Root = root) -> Failure | None:
            explained = examination.judge_uncounted(smaller)
            if explained.unknown:
                roots = frozenset(failure.root for failure in explained.unknown)
                others.setdefault(roots, smaller)
                return None
            known = explained.known
            return next((f for d, f in known if d.id == name and f.root == root), None)

        occurrence.failure, occurrence.smallest = shrink_failure(
            examination, occurrence.failure, occurrence.smallest, deviates
        )
    for other in others.values():  # forgotten, as `check` does not count judged cases
        examination.verdicts.pop(other.case.id, None)
    return list(others.values())


@counted(Phase.SHRINK)
def shrink_failure(
    examination: Examination,
    failure: Failure,
    sourced: Sourced,
    wanted: Callable[[Sourced], Failure | None],
    seconds: float | None = None,
) -> tuple[Failure, Sourced]:
    """Return the failure and the smallest case found for which `wanted` returns one."""
    best = {sourced.case.id: failure}

    def fails(case: Case) -> bool:
        shown = wanted(Sourced(case, sourced.origin, sourced.source))
        if shown is not None:
            best[case.id] = shown
        return shown is not None

    tries = _DEADLY_TRIES if failure.oracle == PROCESS else _TRIES
    if seconds is None:
        seconds = examination.certainty.shrink_seconds(failure)
    smallest = shrink(sourced.case, fails, tries, seconds)
    changed = smallest is not sourced.case
    if is_death(failure) and (changed or examination.certainty.was_hurried(failure)):
        repeated = examination.certainty.repeated(failure, smallest)
        if repeated is None:  # only once: the first case is known to show it again
            return failure, sourced
        best[smallest.id] = repeated
    return best[smallest.id], Sourced(smallest, sourced.origin, sourced.source)
