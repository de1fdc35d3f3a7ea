"""Cases that are made from the operation's own: pairs of critical features, and variations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from attnproof import reference
from attnproof.harness.cases.coverage.steering import toward_gaps
from attnproof.harness.cases.variation.altered_calls import altered_cases
from attnproof.harness.cases.variation.change import MOST_SIZE, is_small, size_of
from attnproof.harness.cases.variation.combined import crossed, enlarged, limits_of
from attnproof.harness.cases.variation.irregular import irregular
from attnproof.harness.cases.variation.varied import varied
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place
from attnproof.harness.oracles.equality import same
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.case_check import problem_of, problem_of_variant
from attnproof.harness.running.loading import offered_by

_CROSSED = 150
"""Maximum number of cases with several critical features."""
_CROSSED_PER_LARGE = 6
"""Cases with several critical features for each large one."""
_MOST_SHOWN = 200
"""Maximum of `size_of` a case that is called twice before it is judged."""
_DRAWN_PER_VARIED = 4
"""Drawn cases for each variation of one."""
_DRAWN_PER_STEP = 8
"""Drawn cases for each variation of an engine step."""
_LARGE, _TILE = 100, 128
"""Size or number of steps above which a run of few cases gives the interpreter two boundaries, the
largest and one that fills its tiles of this many entries exactly."""
_MOST_INTERPRETED, _MOST_INTERPRETED_RESULTS = 200, 1 << 16
"""Maximum of `size_of` a case in Triton's interpreter, which takes 0.1 s a row in some kernels,
and of the tensor entries of its results."""

_OPTIONS = (bool, str, type(None))
"""Types of the parameters of a case that are options."""
_ALTERED, _ALTERED_TOLERANT, _ALTERED_BOUNDARIES = 450, 96, 12
"""Maximum of altered values to try, of which the reference refuses about half; that of operations
on floats, whose reference takes long; and boundaries to alter."""


def more_cases(
    operation: Operation,
    drawn: Sequence[Case],
    examples: int,
    seed: int,
    steps: Sequence[Case],
    tested: Callable[[], Iterable[int]],
) -> Iterator[Sourced]:
    """Yield cases of critical features, variations of boundaries and drawn cases, and of `steps`.

    `tested` returns the cells of the tests so far. `examples` is the number of cases that
    Hypothesis was to draw; few of them, few of these.
    """
    if operation.inputs.machine is not None:  # a state machine draws the steps of a sequence
        return
    # The more cases a run has time for, the larger the share of these: few drawn ones suffice.
    few = min(_CROSSED, max(examples * 3 // 10, examples**2 // 300))
    own = [case for _, case in operation.inputs.boundaries()]
    regular = [*own]
    for name, case in crossed(operation, few, seed, problem_of_variant):
        regular.append(case)
        yield Sourced(case, "boundary", name)
    for name, case in enlarged(operation, few // _CROSSED_PER_LARGE, seed, problem_of_variant):
        yield Sourced(case, "boundary", name)
    for name, case in islice(irregular([*regular, *drawn], seed, _shows(operation)), few):
        yield Sourced(case, "boundary", name)
    count = -(-examples // _DRAWN_PER_VARIED)
    for name, case in varied(operation, [*own, *drawn], count, seed, problem_of):
        yield Sourced(case, "boundary", name)
    few = -(-examples // _DRAWN_PER_STEP)
    for name, case in toward_gaps(steps, tested(), few, seed, problem_of):
        yield Sourced(case, "boundary", name)


def ids_of_large(operation: Operation) -> set[str]:
    """Return the ids of the large boundaries, but for the largest and one of full tiles.

    Triton's interpreter takes milliseconds for a request, an entry or a step.
    """
    sizes = {case.id: case.num_steps or size_of(case) for _, case in operation.inputs.boundaries()}
    large = sorted((size, case_id) for case_id, size in sizes.items() if size > _LARGE)
    full = [case_id for size, case_id in large if size % _TILE == 0]
    return {case_id for _, case_id in large[:-1]} - {*full[:1]}


def is_interpreted_soon(operation: Operation, case: Case) -> bool:
    """True if the reference accepts the case, and Triton's interpreter is fast enough for it."""
    if size_of(case) > _MOST_INTERPRETED:
        return False
    expected = _expected(operation, case)
    if expected is None:
        return False
    tensors = (value for value in expected.values() if isinstance(value, torch.Tensor))
    return sum(tensor.numel() for tensor in tensors) <= _MOST_INTERPRETED_RESULTS


def _expected(operation: Operation, case: Case) -> dict[Place, Any] | None:
    """Return the reference's outputs, None if it does not accept the case."""
    try:
        return Trial(operation, case, None, offered_by(reference, operation), "cpu").expected
    except Exception:  # a meaningless case, which any function may answer with any error
        return None


def _shows(operation: Operation) -> Callable[[Case, Case], bool]:
    """Return the test of a disturbed case: its result is not that of the regular one.

    Otherwise a fast path that takes the one for the other is right. Results of floats take long.
    """
    limits, known = limits_of(operation), dict[str, dict[Place, Any] | None]()

    def expected(case: Case) -> dict[Place, Any] | None:
        if case.id not in known:  # a regular case has several disturbed ones
            known[case.id] = None if problem_of_variant(case) else _expected(operation, case)
        return known[case.id]

    def shows(regular: Case, case: Case) -> bool:
        if size_of(case) > _MOST_SHOWN or not is_small(case, limits):
            return False
        if problem_of_variant(case) or operation.why_unreal(case):
            return False
        if operation.contract.tolerant:
            return True
        before, after = expected(regular), _expected(operation, case)
        if after is None or before is None or before.keys() != after.keys():
            return after is not None
        return not all(same(before[place], after[place]) for place in after)

    return shows


def options_of(case: Case) -> set[tuple[str, object]]:
    """Return name and value of the parameters that select a way through the code."""
    return {parameter for parameter in case.params.items() if isinstance(parameter[1], _OPTIONS)}


def _with_each_option(cases: Iterable[Case]) -> list[Case]:
    """Return the small cases by size, those first that have an option which no smaller one has.

    A case with a cache beyond 2^31 elements is not small: an altered copy has its size.
    """
    seen = set[tuple[str, object]]()
    first, others = list[Case](), list[Case]()
    small = (case for case in cases if size_of(case) <= MOST_SIZE and not case.params.get("far"))
    for case in sorted(small, key=size_of):
        options = options_of(case)
        (others if options <= seen else first).append(case)
        seen |= options
    return first + others


def altered(operation: Operation, candidate: Candidate, examples: int) -> Iterator[Sourced]:
    """Yield small boundaries with one altered value that a check of the input must refuse.

    Yields none if the candidate does not check its input, or not on the CPU. `examples` is that of
    `more_cases`: the more cases a run has time for, the larger the share of these.
    """
    if not candidate.checked or candidate.device != "cpu" or candidate.lane == "interpreter":
        return
    boundaries = _with_each_option([case for _, case in operation.inputs.boundaries()])
    most = _ALTERED_TOLERANT if operation.contract.tolerant else _ALTERED
    most = min(most, max(examples, examples**2 // 90))
    for case in altered_cases(operation, boundaries[:_ALTERED_BOUNDARIES], most):
        yield Sourced(case, "boundary", case.fault)
