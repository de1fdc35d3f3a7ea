"""Progress of a campaign: a line now and then, and one for each new finding."""

from __future__ import annotations

import time

from attnproof.harness.campaign.driver import Driver
from attnproof.harness.campaign.records import Line, Shrunk, TaskEnded
from attnproof.harness.report.shared.wording import listed, many
from attnproof.harness.running.task.root_causes import Root
from attnproof.harness.verbs.messages import say

_EVERY_S = 10.0
_NAMED = 3
"""Operations that a line names."""


class CampaignProgress:
    """Prints what a campaign does."""

    def __init__(self) -> None:
        self._printed: set[tuple[str, str, Root]] = set()
        self._due = 0.0
        self._cases = 0
        """Cases of earlier drivers."""
        self._started = time.monotonic()

    def begin(self, driver: Driver) -> None:
        """Say what is going to be done."""
        state = driver.state
        self._cases, self._started = state.cases, time.monotonic()
        self._due = self._started + _EVERY_S
        if state.tasks:
            say(
                f"goes on after {many(state.tasks, 'task')}, {many(state.cases, 'case')}, "
                f"{many(state.num_root_causes, 'finding')}, {_clock(state.worked_s)}"
            )
        for pair, known in state.pairs.items():
            self._printed |= {(*pair, root) for root in known.known}
        say(
            f"campaign of {many(len(driver.aim.pairs), 'pair')} of operation and candidate, "
            f"{many(driver.pool.size(), 'worker')}, seed {driver.aim.settings.seed}"
        )

    def on_line(self, _driver: Driver, line: Line, _new: int) -> None:
        """Print a line for each finding that is new, and for a task without a verdict."""
        if isinstance(line, TaskEnded):
            result = line.answer.outcome.result
            if result.verdict == "UNVERIFIED":
                say(f"UNVERIFIED  {result.name} [{result.candidate}] {result.reason}")
        elif isinstance(line, Shrunk):
            for finding in line.answer.outcome.findings:
                key = (*line.pair, finding.root)
                if key not in self._printed:
                    self._printed.add(key)
                    say(
                        f"FOUND       {finding.operation} [{finding.candidate}] "
                        f"({finding.kind}): {finding.message}"
                    )

    def tick(self, driver: Driver) -> None:
        """Print a line if one is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY_S
        state = driver.state
        rate = (state.cases - self._cases) / (now - self._started)
        growing = sorted(
            (pair for pair in driver.aim.pairs if state.pairs[pair].growth.rate),
            key=lambda pair: -state.pairs[pair].growth.rate,
        )
        names = listed([pair.operation for pair in growing], _NAMED)
        say(
            f"{_clock(driver.worked_s)}  {many(state.tasks, 'task')}, "
            f"{many(state.cases, 'case')} ({rate:.0f} cases/s), "
            f"{many(state.num_root_causes, 'finding')}, {driver.pool.size()} workers, "
            f"growing: {names or 'none'}"
        )


def _clock(seconds: float) -> str:
    """Return a duration as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
