"""Run the command line in a process of its own, and find what it leaves behind.

The process is forked from this one, which has imported torch: a start takes two seconds less.
This process adopts the orphans of every run, so that none can hide.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from attnproof.harness.running.processes.stopwatch import INTERVAL_S, Stopwatch
from attnproof.harness.running.processes.tree import children_of
from tests.forking import become

LIMIT_S = 60.0
"""Seconds of its own, as a `Stopwatch` counts them, after which a run is killed with all its
processes: then the attack succeeded. On a busy machine a run takes longer."""
FURTHER_S = 10.0
"""Seconds more for each candidate after the first one."""
ORPHAN_S = 5.0
"""Seconds that the processes of a run may outlive it."""
OPERATION = "slice_query_start_locs"
"""Operation with the fewest cases among those that return a tensor."""
QUICK = ("--examples", "20", "--steps", "0", "--seed", "1", "--timeout", "2", "--no-remember")


class Ended:
    """An ended run: exit status, output, report and surviving processes."""

    def __init__(
        self, status: int, out: str, err: str, survivors: list[str], seconds: float, folder: Path
    ) -> None:
        self.status, self.out, self.err = status, out, err
        self.survivors, self.seconds, self.folder = survivors, seconds, folder

    @cached_property
    def summary(self) -> dict:
        """The summary in the folder `o`."""
        return json.loads((self.folder / "o" / "summary.json").read_text(encoding="utf-8"))

    def candidate(self, name: str) -> Judged:
        """Return verdict and texts of a candidate; of several operations the first."""
        [operation, *_] = [o for o in self.summary["operations"] if o["candidate"] == name]
        findings = [f for f in self.summary["findings"] if f["candidate"] == name]
        texts = [operation["reason"], *(f"{f['diagnosis']}\n{f['message']}" for f in findings)]
        return Judged(operation["verdict"], "\n".join(texts), len(findings))

    def assert_orderly(self, *statuses: int) -> None:
        """Raise AssertionError unless the run ended by itself, whole and alone."""
        texts = f"status {self.status} after {self.seconds:.1f} s\n{self.out}\n{self.err}"
        assert self.status in statuses, texts
        assert "Traceback" not in self.err, texts
        assert not self.survivors, f"left behind: {self.survivors}\n{texts}"

    def assert_report(self) -> None:
        """Raise AssertionError unless the report is there and well-formed."""
        assert self.summary["schema"] == "attnproof.summary/1"
        page = (self.folder / "o" / "index.html").read_text(encoding="utf-8")
        assert page.rstrip().endswith("</html>")
        with (self.folder / "o" / "results.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                json.loads(line)


class Judged(NamedTuple):
    """The verdict on a candidate, and the texts that explain it."""

    verdict: str
    text: str
    findings: int


class Run:
    """A command line that runs in `folder`; the caller must call `end`."""

    def __init__(
        self, function: Callable[[], object], folder: Path, limit_s: float = LIMIT_S
    ) -> None:
        self.folder, self.limit_s = folder, limit_s
        self._others = set(children_of(os.getpid()))
        self._streams = (tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+"))  # noqa: SIM115
        self._begun = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            become(function, folder, *(stream.fileno() for stream in self._streams))

    def tree(self) -> dict[str, list[int]]:
        """Return the processes of the run by their part: tasks, launchers, workers."""
        tasks = children_of(self.pid)
        launchers = [child for task in tasks for child in children_of(task)]
        workers = [child for launcher in launchers for child in children_of(launcher)]
        return {"main": [self.pid], "task": tasks, "launcher": launchers, "worker": workers}

    def signal(self, number: int, *pids: int) -> None:
        """Send a signal to processes, by default to the main one."""
        for pid in pids or (self.pid,):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self, limit_s: float | None = None, beside: Run | None = None) -> Ended:
        """Wait for the run, kill it after the limit, and collect what it left.

        Processes of a run that goes on `beside` are its own.
        """
        stopwatch, status = Stopwatch(self.pid), None
        limit_s = limit_s or self.limit_s
        while status is None:
            found, raw = os.waitpid(self.pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(raw) if found else None
            late = stopwatch.is_due(INTERVAL_S) and stopwatch.look() > limit_s
            if status is None and late:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.01)
        seconds = time.monotonic() - self._begun
        survivors = self._survivors(beside)
        texts = []
        for stream in self._streams:
            stream.seek(0)
            texts.append(stream.read())
            stream.close()
        return Ended(status, *texts, survivors, seconds, self.folder)

    def _survivors(self, beside: Run | None) -> list[str]:
        """Wait for the other processes of the run; kill and name those that do not end."""
        if beside is not None:
            return []
        deadline, named = time.monotonic() + ORPHAN_S, {}
        while left := set(children_of(os.getpid())) - self._others:
            for pid in left:
                if time.monotonic() > deadline:
                    named.setdefault(pid, _command(pid))
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)
        return list(named.values())


def verify(folder: Path, *arguments: object, operations: str = OPERATION) -> Run:
    """Start `verify` of one operation, quickly, with its report in the folder `o`."""
    return command("verify", "--ops", operations, *QUICK, "--out", "o", *arguments, folder=folder)


def command(*arguments: object, folder: Path) -> Run:
    """Start a command line of attnproof in the folder."""

    def call() -> None:
        from attnproof.harness.cli import main

        sys.argv = ["attnproof", *map(str, arguments)]
        main()

    further = max(0, arguments.count("--candidate") - 1)
    return Run(call, folder, LIMIT_S + FURTHER_S * further)


def shell(text: str, folder: Path) -> Run:
    """Start a command of bash, in which `$attnproof` is the command line."""
    environment = os.environ | {
        "attnproof": f"{sys.executable} -m attnproof",
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    }
    return Run(lambda: os.execvpe("bash", ["bash", "-c", text], environment), folder)


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:80]
    return str(pid)
