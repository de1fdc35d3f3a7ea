"""The number of cases of a run: fewer for each operation where many are verified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.comparison import ComparedRun
from attnproof.harness.model.operation import Operation
from attnproof.harness.running.parent.plan import Lacking, find_skip
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.verbs.options import VerifyOptions

_ALL_EXAMPLES = 7_000
"""Drawn cases of a run without `--examples`, within the bounds for one operation."""
_LEAST, _STEP, _MOST = 36, 9, Settings().examples
"""Bounds for one operation, and the number of cases that one seed draws."""
_INTERPRETED_PAIRS = 2
"""Pairs of operation and candidate that take as long as one in Triton's interpreter."""
_CASES_PER_STEP = 4
_THOROUGH_STEPS = 200
"""Least number of engine steps of a thorough run."""


class Depth(NamedTuple):
    """The number of cases of each operation."""

    examples: int
    """Drawn cases."""
    steps: int
    """Engine steps taken from the traces."""
    is_usual: bool
    """True if both are at least the numbers of a run without `--examples` and `--steps`."""
    sparse: bool
    """True if a run has fewer cases than usual because of its many operations."""


def depth_of(
    options: VerifyOptions,
    operations: Sequence[Operation],
    candidates: Iterable[Candidate],
    lacking: Lacking,
    base: ComparedRun | None,
) -> Depth:
    """Return the number of cases: as given, or as many as the base run or a usual run has."""
    pairs = sum(
        _INTERPRETED_PAIRS if candidate.lane == "interpreter" else 1
        for candidate in candidates
        for operation in operations
        if find_skip(operation, candidate) is None
        and operation.name not in lacking.get(candidate.name, {})
    )
    usual = _usual(pairs, thorough=options.thorough)
    examples = _examples_of(base) or usual if options.examples is None else options.examples
    usual_steps = usual // _CASES_PER_STEP
    steps = usual_steps if options.steps is None else options.steps
    if options.thorough:
        steps = max(steps, _THOROUGH_STEPS)
    sparse = options.examples is None and usual < _MOST
    return Depth(examples, steps, examples >= usual and steps >= usual_steps, sparse)


def _usual(pairs: int, *, thorough: bool) -> int:
    if thorough:
        return _MOST
    share = _ALL_EXAMPLES // max(pairs, 1) // _STEP * _STEP
    return max(_LEAST, min(_MOST, share))


def _examples_of(base: ComparedRun | None) -> int:
    """Return the number of drawn cases of a base run, 0 without one."""
    drawn = base.settings.get("examples") if base else None
    return drawn if isinstance(drawn, int) else 0
