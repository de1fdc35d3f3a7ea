"""Run tests with one torch thread, as in a worker, and command lines in forked processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from tests.forking import become

# More threads slow down small tensors.
torch.set_num_threads(1)

_LIMIT_S = 300.0
_GROUPS = ("slow", "strength", "lanes", "attacks", "campaign")
"""Markers of the tests that have an environment of their own."""
Forked = Callable[..., CompletedProcess[str]]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files without the marker that is asked for: importing all of them takes 15 s."""
    group: str = config.option.markexpr
    if group not in _GROUPS or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if group in collection_path.parts or f"mark.{group}" in text else True


def pytest_collection_finish() -> None:
    """Hide what is imported from garbage collections.

    A visit to all of it takes a quarter of an examination, and copies its memory in each fork.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def forked() -> Forked:
    """Call a function in a process that has imported torch already, which takes two seconds.

    Returns its output and its exit status: 0, that of `SystemExit`, or 1 after a traceback.
    """
    return _forked


@pytest.fixture(scope="session")
def attnproof() -> Forked:
    """Run the command line in a forked process, with what its verbs import in this one.

    Verbs that draw a new seed without an option get the same one in each run of the tests.
    """
    import attnproof.harness.verbs.replay
    import attnproof.harness.verbs.verify  # noqa: F401
    from attnproof.harness.running.candidates import BUILT_IN
    from attnproof.harness.running.worker.worker import warm_up

    warm_up(BUILT_IN)

    def run(
        *arguments: object, cwd: Path | None = None, **environment: str
    ) -> CompletedProcess[str]:
        def command_line() -> None:
            from attnproof.harness.cli import main

            sys.argv = ["attnproof", *map(str, arguments)]
            if arguments[:1] in (("verify",), ("campaign",)) and "--seed" not in sys.argv:
                sys.argv += ["--seed", "1"]
            main()

        return _forked(command_line, cwd=cwd, **environment)

    return run


def _forked(
    function: Callable[[], object], *, cwd: Path | None = None, **environment: str
) -> CompletedProcess[str]:
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            become(function, cwd or Path.cwd(), out.fileno(), errors.fileno(), environment)
        status = _waited(child)
        texts = []
        for stream in (out, errors):
            stream.seek(0)
            texts.append(stream.read())
    return CompletedProcess([], os.waitstatus_to_exitcode(status), *texts)


def _waited(child: int) -> int:
    end = time.monotonic() + _LIMIT_S
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
