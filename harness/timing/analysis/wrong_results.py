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
    pairs = {(one.operation, one.candidate) for one in wrong}
    steps = [one for one in bench.steps if not _has(pairs, one.operations, one.candidate)]
    kept = {(one.trace, one.candidate) for one in steps}
    return msgspec.structs.replace(
        bench,
        timings=[one for one in bench.timings if (one.operation, one.candidate) not in pairs],
        comparisons=[
            one
            for one in bench.comparisons
            if not {(one.operation, one.candidate), (one.operation, one.peer)} & pairs
        ],
        steps=steps,
        step_comparisons=[
            one
            for one in bench.step_comparisons
            if {(one.trace, one.candidate), (one.trace, one.peer)} <= kept
        ],
        untimed=[
            *(one for one in bench.untimed if (one.operation, one.candidate) not in pairs),
            *(
                Untimed(operation=one.operation, candidate=one.candidate, reason=one.reason)
                for one in wrong
            ),
        ],
    )


def _has(pairs: set[tuple[str, str]], operations: Sequence[str], candidate: str) -> bool:
    return any((operation, candidate) in pairs for operation in operations)
