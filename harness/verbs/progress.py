"""How a run shows that it goes on: bars on a terminal, one line an operation otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from attnproof.harness.model.run import OperationResult, OracleCount
from attnproof.harness.running.parent.session import Watcher


@contextmanager
def shown(expected_cases: int) -> Iterator[Watcher]:
    """A watcher for a run of tasks of about `expected_cases` cases each."""
    if sys.stderr.isatty():
        with _bars(expected_cases) as watcher:
            yield watcher
    else:
        yield Watcher(
            planned=lambda _total: None,
            started=lambda _operation, _candidate: None,
            progressed=lambda _operation, _candidate, _cases: None,
            ended=_tell,
            tick=lambda: None,
        )


def _tell(result: OperationResult) -> None:
    """One line; what is not offered is counted at the end, or it would drown the rest."""
    if result.verdict != "NOT OFFERED":
        say(line(result))


def say(text: str) -> None:
    """Print; a reader that has closed the pipe does not change what the run found."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def line(result: OperationResult) -> str:
    """The verdict on one operation and candidate in one line."""
    head = f"{result.verdict:<11} {result.name} [{result.candidate}]"
    if result.verdict == "UNVERIFIED":
        return f"{head} {result.reason}"
    failed = f", {result.failed} failed" if result.failed else ""
    steps = result.oracles.get("sequences", OracleCount()).checks
    done, unit = (steps, "steps") if steps else (result.cases, "cases")
    rate = done / result.seconds if result.seconds else 0
    return (
        f"{head} {result.cases} cases{failed}, {result.checks} checks, "
        f"{result.seconds:.1f} s ({rate:.0f} {unit}/s)"
    )


@contextmanager
def _bars(expected_cases: int) -> Iterator[Watcher]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # No refresh thread: the run forks, and a fork copies a lock that a thread may hold.
    with Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, transient=True
    ) as progress:
        whole = progress.add_task("operations", total=None)
        tasks = {}

        def planned(total: int) -> None:
            progress.update(whole, total=total)

        def started(operation: str, candidate: str) -> None:
            label = f"  {operation} [dim]{candidate}[/dim]"
            tasks[operation, candidate] = progress.add_task(label, total=expected_cases)

        def progressed(operation: str, candidate: str, cases: int) -> None:
            progress.update(tasks[operation, candidate], completed=cases)

        def ended(result: OperationResult) -> None:
            progress.remove_task(tasks.pop((result.name, result.candidate)))
            progress.advance(whole)
            if result.verdict not in ("PASS", "NOT OFFERED"):
                progress.console.print(line(result), markup=False, highlight=False)

        yield Watcher(planned, started, progressed, ended, progress.refresh)


@contextmanager
def timing_shown() -> Iterator[Callable[[str, int, int], None]]:
    """Told what is timed now, its number and how many there are: a bar, or a line an operation."""
    if not sys.stderr.isatty():
        yield _Teller().tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("timing {task.description}"), BarColumn(), MofNCompleteColumn())
    # No refresh thread, as above: the process that times is forked anew when it dies.
    with Progress(
        *columns, console=Console(stderr=True), auto_refresh=False, transient=True
    ) as progress:
        bar = progress.add_task("", total=None)

        def told(name: str, number: int, total: int) -> None:
            progress.update(bar, description=name, completed=number, total=total)
            progress.refresh()

        yield told


class _Teller:
    """A line whenever another operation begins."""

    def __init__(self) -> None:
        self._last = ""

    def tell(self, name: str, number: int, total: int) -> None:
        """The entry `number` of `total` begins."""
        if name != self._last:
            say(f"timing      {name} ({number + 1} of {total})")
        self._last = name
