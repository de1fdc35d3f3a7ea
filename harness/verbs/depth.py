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

DEPTHS = ("quick", "default", "thorough")
_ALL_EXAMPLES = 8_200
"""Drawn cases of a run at the default depth, within the bounds for one operation."""
_LEAST, _STEP, _MOST = 36, 9, Settings().examples
"""Bounds for one operation, and the number of cases that one seed draws."""
_INTERPRETED_PAIRS = 2
"""Pairs of operation and candidate that take as long as one in Triton's interpreter."""
_CASES_PER_STEP = 4


class Depth(NamedTuple):
    """The number of cases of each operation."""

    examples: int
    """Drawn cases."""
    steps: int
    """Engine steps taken from the traces."""
    sparse: bool = False
    """`Settings.sparse`."""
    costly_share: int = Settings().costly_share
    is_usual: bool = True
    """True if a run has at least the cases and engine steps of the default depth."""


_FIXED = {
    "quick": Depth(2 * _STEP, 8, sparse=True, is_usual=False),
    "thorough": Depth(_MOST, 200, costly_share=1),
}
"""Depths that do not depend on the number of operations."""


def depth_of(
    options: VerifyOptions,
    operations: Sequence[Operation],
    candidates: Iterable[Candidate],
    lacking: Lacking,
    base: ComparedRun | None,
) -> Depth:
    """Return the number of cases: as given, or that of the base run, or of `options.depth`."""
    pairs = sum(
        _INTERPRETED_PAIRS if candidate.judging(operation.name).lane == "interpreter" else 1
        for candidate in candidates
        for operation in operations
        if find_skip(operation, candidate) is None
        and operation.name not in lacking.get(candidate.name, {})
    )
    depth = depth_named(options.depth, pairs)
    examples = (
        _examples_of(base) or depth.examples if options.examples is None else options.examples
    )
    steps = depth.steps if options.steps is None else options.steps
    return depth._replace(
        examples=examples,
        steps=steps,
        sparse=depth.sparse and options.examples is None,
        is_usual=depth.is_usual and examples >= depth.examples and steps >= depth.steps,
    )


def depth_named(name: str, pairs: int = 1) -> Depth:
    """Return one of `DEPTHS` for a run of that many pairs of operation and candidate."""
    if name in _FIXED:
        return _FIXED[name]
    share = _ALL_EXAMPLES // max(pairs, 1) // _STEP * _STEP
    examples = max(_LEAST, min(_MOST, share))
    return Depth(examples, examples // _CASES_PER_STEP, sparse=examples < _MOST)


def depth_words(options: VerifyOptions) -> str:
    """Return the depth of a run and what a deeper one adds, "" if other options decide it."""
    if options.examples is not None or options.steps is not None or options.base is not None:
        return ""
    thorough = _FIXED["thorough"]
    deeper = {
        "quick": f"; the default draws {_LEAST} to {_MOST} cases for each operation",
        "default": f"; thorough draws {thorough.examples} cases for each operation, takes "
        f"{thorough.steps} engine steps and leaves out no costly case",
    }
    return options.depth + deeper.get(options.depth, "")


def _examples_of(base: ComparedRun | None) -> int:
    """Return the number of drawn cases of a base run, 0 without one."""
    drawn = base.settings.get("examples") if base else None
    return drawn if isinstance(drawn, int) else 0
