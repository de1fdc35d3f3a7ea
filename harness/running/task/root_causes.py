"""The root causes that an examination has found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from attnproof.harness.model.case import Sourced
from attnproof.harness.model.verdict import CONSUMER, Failure
from attnproof.harness.oracles.diagnosis import kernel_sentence

Root = tuple[str, str, str]


@dataclass
class RootCause:
    """A root cause: the smallest case so far, and the first one."""

    failure: Failure
    smallest: Sourced
    first: Sourced
    groups: frozenset[str]
    """`Failure.group` of each failure of the smallest case."""
    kernel: str = ""
    """`kernel_sentence` on the smallest case."""

    @property
    def root(self) -> Root:
        """The root cause."""
        return self.failure.root


def _forget(_root_cause: RootCause) -> None:
    """Take the place of `RootCauses.recorded` where nothing is kept."""


@dataclass
class RootCauses:
    """Root causes found so far, and which failures they account for."""

    by_root: dict[Root, RootCause] = field(default_factory=dict)
    dismissed: set[Root] = field(default_factory=set)
    """Root causes that no fresh process shows, in a candidate that depends on earlier calls."""
    recorded: Callable[[RootCause], None] = _forget
    """Called with each new root cause."""

    def add(
        self, failure: Failure, smallest: Sourced, first: Sourced, shown: tuple[Failure, ...]
    ) -> None:
        """Add a root cause, unless it is known; `shown` are the failures of its smallest case."""
        if failure.root not in self.by_root:
            groups = frozenset(other.group for other in (failure, *shown))
            kernel = kernel_sentence((failure, *shown))
            self.by_root[failure.root] = RootCause(failure, smallest, first, groups, kernel)
            self.recorded(self.by_root[failure.root])

    def new_failure(self, failures: tuple[Failure, ...]) -> Failure | None:
        """Return the first failure of `new_failures`, None without."""
        return next(iter(self.new_failures(failures)), None)

    def new_failures(self, failures: tuple[Failure, ...]) -> list[Failure]:
        """Return the failures that no root cause found so far accounts for.

        A root cause accounts for the other fields that are wrong in its own smallest case.
        Wrong lengths account for wrong bounds, and any root cause for failures of the
        consumer. Other failures of the same case are another mistake.
        """
        present = [
            root_cause
            for root, root_cause in self.by_root.items()
            if any(failure.follows_from(root) for failure in failures)
        ]
        accounted = {group for root_cause in present for group in root_cause.groups}
        if "lengths" in accounted:
            accounted.add("bounds")
        if present:
            accounted.add(CONSUMER)
        return [
            failure
            for failure in failures
            if failure.group not in accounted
            and failure.root not in self.dismissed
            and not any(map(failure.follows_from, self.by_root))
        ]
