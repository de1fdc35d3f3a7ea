"""The interface of an oracle; each module beside this one implements it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.trial import Trial


class Oracle(Protocol):
    """A rule that judges a candidate on a case."""

    @property
    def NAME(self) -> str:  # noqa: N802 (a constant of the module)
        """Name in reports and in the identity of findings."""
        ...

    @property
    def CONTRACT(self) -> str:  # noqa: N802
        """Requirement as a clause that follows the oracle's name."""
        ...

    def judge(self, trial: Trial) -> Iterable[Failure]:
        """Yield a failure for each violation."""
        ...

    def checks(self, trial: Trial) -> int:
        """Return the number of checks that `judge` makes."""
        ...
