"""Progress of a run: bars on a terminal, otherwise one line per operation."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.run import Finding, OperationResult, OracleCount
from attnproof.harness.report.shared.wording import many
from attnproof.harness.running.interface_choice import interface_line
from attnproof.harness.running.parent.session import ProgressCallbacks
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.screen import Screen

_LINE_S = 30.0
"""Seconds between two lines of progress without a terminal."""
_LEAST_ESTIMATE_S = 5.0
"""Time from which on the time that is left is shown, in seconds."""
_NEW_SHARE = 0.3
"""Weight of the newest operation's end in the expected time of the run."""
_TIMING_LINE_S = 5.0
"""Seconds between two lines of one operation that is timed."""
_REFRESH_S = 0.1
"""Shortest time between two drawings of a bar whose steps take less than that, in seconds."""


@contextmanager
def run_progress(expected_cases: int) -> Iterator[ProgressCallbacks]:
    """Yield callbacks that print progress; a task has about `expected_cases` cases."""
    if sys.stderr.isatty():
        with _bars(expected_cases) as watcher:
            yield watcher
        return
    tally = Tally()
    due = time.monotonic() + _LINE_S

    def ended(outcome: Outcome) -> None:
        print_result(outcome)
        tally.ended(outcome)

    def tick() -> None:
        nonlocal due
        if time.monotonic() >= due:
            say(f"PROGRESS    {tally}")
            due = time.monotonic() + _LINE_S

    def failing(interim: Outcome) -> None:
        say(_first_finding(interim))
        tally.failing(interim)

    yield ProgressCallbacks(tally.planned, tally.started, tally.progressed, ended, tick, failing)


@contextmanager
def no_progress(_expected_cases: int) -> Iterator[ProgressCallbacks]:
    """Yield callbacks that print nothing."""
    yield ProgressCallbacks(
        planned=lambda _total: None,
        started=lambda _operation, _candidate: None,
        progressed=lambda _operation, _candidate, _cases: None,
        ended=lambda _outcome: None,
        tick=lambda: None,
    )


class Tally:
    """Operations, cases and findings so far; as text also the rate and the time that is left."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._begun = clock, clock()
        self._total = self._done = self._findings = self._ended_cases = 0
        self._expected_s = 0.0
        """Expected time of the whole run, a moving average over the ends of operations."""
        self._running: dict[tuple[str, str], int] = {}
        """Cases so far of each operation and candidate that runs."""
        self._failing: set[tuple[str, str]] = set()
        """Those of them with a finding already."""

    def planned(self, total: int) -> None:
        """Note the number of tasks."""
        self._total = total

    def started(self, operation: str, candidate: str) -> None:
        """Note that a task has begun."""
        self._running[operation, candidate] = 0

    def progressed(self, operation: str, candidate: str, cases: int) -> None:
        """Note the cases of a task so far."""
        self._running[operation, candidate] = cases

    def failing(self, outcome: Outcome) -> None:
        """Note the first finding of a task that runs."""
        self._failing.add((outcome.result.name, outcome.result.candidate))

    def ended(self, outcome: Outcome) -> None:
        """Note the end of a task; of one that was never started only its findings."""
        result = outcome.result
        self._findings += len(outcome.findings)
        self._failing.discard((result.name, result.candidate))
        if self._running.pop((result.name, result.candidate), None) is not None:
            self._done += 1
            self._ended_cases += result.cases
            expected = (self._clock() - self._begun) / self._done * self._total
            share = _NEW_SHARE if self._expected_s else 1.0
            self._expected_s += share * (expected - self._expected_s)

    def __str__(self) -> str:
        seconds = self._clock() - self._begun
        cases = self._ended_cases + sum(self._running.values())
        rate = cases / seconds if seconds else 0
        text = (
            f"{self._done} of {many(self._total, 'operation')}, {cases:,} cases ({rate:.0f}/s), "
            f"{many(self._findings + len(self._failing), 'finding')}"
        )
        # An average that the run has outlasted says nothing about the rest.
        left = self._expected_s - seconds
        is_known = seconds >= _LEAST_ESTIMATE_S and left > 0
        return f"{text}, about {_duration(left)} left" if is_known else text


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 1 else f"{minutes:.0f} min"


def print_interface(candidate: Candidate) -> None:
    """Print the candidate's interface, and why it is that one."""
    if text := interface_line(candidate):
        say(escape_line(text))


def print_result(outcome: Outcome) -> None:
    """Print a line and those of its findings; the closing summary counts NOT OFFERED."""
    if outcome.result.verdict != "NOT OFFERED":
        say("\n".join(_lines(outcome)))


def _first_finding(interim: Outcome) -> str:
    """Return a line on what an operation fails by, long before its last case."""
    name, candidate = interim.result.name, interim.result.candidate
    return escape_line(f"FAILING     {name} [{candidate}] {_described(interim.findings[0])}")


def _lines(outcome: Outcome) -> list[str]:
    own = f"{outcome.result.name} [{outcome.result.candidate}]: "
    notes = [f"    note: {n.removeprefix(own)}" for n in outcome.notes if n.startswith(own)]
    findings = [f"    {_described(finding)}" for finding in outcome.findings]
    return [line(outcome.result), *map(escape_line, [*notes, *findings])]


def _described(finding: Finding) -> str:
    """Return the finding in a line; the message of a broken invariant ends in the diagnosis."""
    if finding.message.endswith(finding.diagnosis):
        return f"{finding.kind}: {finding.message}"
    message = f": {finding.message}" if finding.has_known_mistake else ""
    return f"{finding.kind}: {finding.diagnosis}{message}"


def line(result: OperationResult) -> str:
    """Return the verdict on one operation and candidate as one line."""
    return escape_line(_line(result))


def _line(result: OperationResult) -> str:
    head = f"{result.verdict:<11} {result.name} [{result.candidate}]"
    if result.verdict == "UNVERIFIED":
        return f"{head} {result.reason}"
    failed = f", {result.failed} failed" if result.failed else ""
    failed += f", {result.advice} advice" if result.advice else ""
    steps = result.oracles.get("sequences", OracleCount()).checks
    done, unit = (steps, "steps") if steps else (result.cases, "cases")
    rate = done / result.seconds if result.seconds else 0
    return (
        f"{head} {result.cases} cases{failed}, {result.checks} checks, "
        f"{result.seconds:.1f} s ({rate:.0f} {unit}/s)"
    )


@contextmanager
def _bars(expected_cases: int) -> Iterator[ProgressCallbacks]:
    # No refresh thread: the run forks, and a lock held by a thread stays locked in the fork.
    with _progress("{task.description}") as progress:
        tally = Tally()
        whole = progress.add_task("", total=None)
        tasks = {}

        def planned(total: int) -> None:
            tally.planned(total)
            progress.update(whole, total=total)

        def started(operation: str, candidate: str) -> None:
            tally.started(operation, candidate)
            label = escape_line(f"  {operation} [{candidate}]")
            tasks[operation, candidate] = progress.add_task(label, total=expected_cases)

        def progressed(operation: str, candidate: str, cases: int) -> None:
            tally.progressed(operation, candidate, cases)
            # Variations add cases: the bar must not pass its end.
            total = max(expected_cases, cases)
            progress.update(tasks[operation, candidate], completed=cases, total=total)

        def ended(outcome: Outcome) -> None:
            result = outcome.result
            tally.ended(outcome)
            progress.remove_task(tasks.pop((result.name, result.candidate)))
            progress.advance(whole)
            if result.verdict not in ("PASS", "NOT OFFERED"):
                progress.console.print("\n".join(_lines(outcome)))

        def failing(interim: Outcome) -> None:
            progress.console.print(_first_finding(interim))
            tally.failing(interim)

        def tick() -> None:
            progress.update(whole, description=str(tally))
            progress.refresh()

        yield ProgressCallbacks(planned, started, progressed, ended, tick, failing)


def _progress(description: str) -> Progress:
    """Return bars with a description, a format of the task, that is no markup."""
    columns = (TextColumn(description, markup=False), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, console=Screen(stderr=True), auto_refresh=False, transient=True)


@contextmanager
def timing_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback (operation, its number from 0, total): a bar, or a line per operation."""
    if not sys.stderr.isatty():
        yield _LinePerOperation().show
        return
    # No refresh thread, as above: the timing process is forked again if it dies.
    with _progress("timing {task.description}") as progress:
        bar = progress.add_task("", total=None)

        def show(name: str, number: int, total: int) -> None:
            progress.update(bar, description=name, completed=number, total=total)
            progress.refresh()

        yield show


@contextmanager
def recording_progress() -> Iterator[Callable[[str, int], None]]:
    """Yield a callback (file, its steps compared so far): a bar, or a line per recording."""
    if not sys.stderr.isatty():
        yield _print_recording
        return
    with _progress("comparing {task.description}") as progress:
        bar = progress.add_task("recordings", total=None)
        due = 0.0

        def show(file: str, steps: int) -> None:
            nonlocal due
            if steps and time.monotonic() < due:
                return
            progress.update(bar, description=escape_line(file), completed=steps)
            progress.refresh()
            due = time.monotonic() + _REFRESH_S

        yield show


@contextmanager
def no_recording_progress() -> Iterator[Callable[[str, int], None]]:
    """Yield a callback that prints nothing."""
    yield lambda _file, _steps: None


def _print_recording(file: str, steps: int) -> None:
    if not steps:
        say(f"comparing   {escape_line(file)}")


class _LinePerOperation:
    """Prints a line when the operation changes, and while one takes long."""

    def __init__(self) -> None:
        self._last, self._due = "", 0.0

    def show(self, name: str, number: int, total: int) -> None:
        """Report that entry `number` (from 0) of `total` begins."""
        now = time.monotonic()
        if name != self._last or now >= self._due:
            say(f"timing      {name} ({number + 1} of {total})")
            self._due = now + _TIMING_LINE_S
        self._last = name
