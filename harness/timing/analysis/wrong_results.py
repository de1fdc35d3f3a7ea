"""Candidates that were right while they were verified and wrong while they were timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from attnproof.harness.model.timing import Bench, Untimed


class WrongResult(NamedTuple):
    """A result of a timed call that is not the verified one."""

    operation: str
    candidate: str
    workload: str
    """Name of the workload on which it was found first."""
    text: str
    """The failure in words, with place, value and expected value."""

    @property
    def reason(self) -> str:
        """The failure in words, with the workload."""
        return f"{self.text} ({self.workload})"


def without_times(bench: Bench, wrong: Sequence[WrongResult]) -> Bench:
    """Return the benchmark without any time of these operations and candidates.

    Their times on other workloads are left out too: the samples there that were not compared
    may be wrong. The operations become untimed ones with the reason.
    """
    if not wrong:
        return bench
    pairs = {(result.operation, result.candidate) for result in wrong}
    steps = [step for step in bench.steps if not _has(pairs, step.operations, step.candidate)]
    kept = {(step.trace, step.candidate) for step in steps}
    return msgspec.structs.replace(
        bench,
        timings=[row for row in bench.timings if (row.operation, row.candidate) not in pairs],
        comparisons=[
            row
            for row in bench.comparisons
            if not {(row.operation, row.candidate), (row.operation, row.peer)} & pairs
        ],
        steps=steps,
        step_comparisons=[
            row
            for row in bench.step_comparisons
            if {(row.trace, row.candidate), (row.trace, row.peer)} <= kept
        ],
        untimed=[
            *(row for row in bench.untimed if (row.operation, row.candidate) not in pairs),
            *(
                Untimed(operation=row.operation, candidate=row.candidate, reason=row.reason)
                for row in wrong
            ),
        ],
    )


def _has(pairs: set[tuple[str, str]], operations: Sequence[str], candidate: str) -> bool:
    return any((operation, candidate) in pairs for operation in operations)
