"""`attnproof record`: run an engine with the recorder armed, and say what was recorded."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attnproof.harness.cases.recorded.reading import recorded_steps
from attnproof.harness.cases.recorded.steps import RecordingError
from attnproof.harness.escaping import escape_line, shell_path
from attnproof.harness.recorder.schema import SUFFIX
from attnproof.harness.recorder.settings import PLUGIN, Settings
from attnproof.harness.running.errors import INCOMPLETE, UsageError
from attnproof.harness.running.extras import install_hint, missing
from attnproof.harness.verbs.messages import complain, say
from attnproof.harness.verbs.options import RecordOptions

_SIGNALLED = 128
"""Exit code of a shell for a command that a signal ended, less the signal's number."""
_PLUGINS = "VLLM_PLUGINS"


def record(options: RecordOptions) -> int:
    """Run the command, and print the recorded steps of each process; return the exit code."""
    if missing("zstandard"):
        raise UsageError(f"zstandard is not installed: {install_hint('zstandard')}")
    for name, value, least in (("sample", options.sample, 1), ("limit", options.limit, 0)):
        if value < least:
            raise UsageError(f"--{name} is {value}: must be at least {least}")
    before = set(_files(options.out))
    code = _run(options)
    files = [path for path in _files(options.out) if path not in before]
    counts = [_report(path) for path in files]
    steps = sum(batches for batches, _ in counts) or sum(calls for _, calls in counts)
    if not steps:
        complain(
            "no engine step was recorded: does the command run vLLM 0.32 or 0.11, with attnproof "
            "installed in its environment?"
        )
        return code or INCOMPLETE
    say(f"{steps} steps recorded; next: attnproof verify --recorded {shell_path(options.out)}")
    return code


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


def _run(options: RecordOptions) -> int:
    """Run the command with the recorder armed; return its exit code."""
    settings = Settings(options.out.absolute(), options.sample, options.limit)
    environment = {**os.environ, **settings.environment()}
    if _PLUGINS in environment:  # a list of the only plugins that vLLM loads
        environment[_PLUGINS] = ",".join(filter(None, [environment[_PLUGINS], PLUGIN]))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        name = escape_line(str(options.out))
        raise UsageError(f"--out {name} cannot be written: {error.strerror}") from None
    try:
        process = subprocess.Popen(options.command, env=environment)
    except OSError as error:
        name = escape_line(options.command[0])
        raise UsageError(f"{name} cannot be run: {error.strerror}") from None
    with _signals_to(process):
        code = process.wait()
    return code if code >= 0 else _SIGNALLED - code


@contextmanager
def _signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave an end by a signal to the command; a terminal sends an interrupt to it as well."""
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: None),
        signal.SIGTERM: signal.signal(
            signal.SIGTERM, lambda number, _: process.send_signal(number)
        ),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _report(path: Path) -> tuple[int, int]:
    """Print a line on a file; return its steps with batches, and with calls of a manager."""
    steps, calls, remarks = 0, 0, list[str]()
    try:
        for step in recorded_steps(path, remarks):
            steps += bool(step.builds)
            calls += step.manager is not None
    except RecordingError as error:
        complain(error)
        return 0, 0
    kib = path.stat().st_size / 1024
    counted = f"manager calls of {calls} steps" if calls else f"{steps} steps"
    say("; ".join([f"{escape_line(path.name)}: {counted}, {kib:.1f} KiB", *remarks]))
    return steps, calls
