"""`attnproof verify`: run the cases, write the report, return the verdict as exit code."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path

from attnproof.harness.escaping import escape_line
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Run
from attnproof.harness.phases import profiled
from attnproof.harness.report.terminal.bench import bench_text
from attnproof.harness.running import interrupt
from attnproof.harness.running.adapting import unused_notes
from attnproof.harness.verbs.ci import publish
from attnproof.harness.verbs.closing_summary import closing_summary
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import TimingOptions, VerifyOptions
from attnproof.harness.verbs.progress import (
    no_progress,
    no_recording_progress,
    print_interface,
    print_result,
    recording_progress,
    run_progress,
)
from attnproof.harness.verbs.verification import exit_code, run_verification


@interrupt.restored_handlers()
def verify(
    options: VerifyOptions,
    *,
    command: str = "attnproof verify",
    timing: TimingOptions | None = None,
    minimise_known: bool = True,
) -> int:
    """Run the cases, write the report, print the verdict; return the exit code.

    The parameters are those of `run_verification`. Raise UsageError before anything runs.
    """
    if not options.as_json:
        return _verify(options, command, timing, minimise_known)[0]
    with redirect_stdout(sys.stderr):
        code, place = _verify(options, command, timing, minimise_known)
    print((place / "summary.json").read_text(encoding="utf-8"), flush=True)
    return code


def _verify(
    options: VerifyOptions, command: str, timing: TimingOptions | None, minimise_known: bool
) -> tuple[int, Path]:
    """Return the exit code and the folder of the report."""
    if not options.profile:
        return _verified(options, command, timing, minimise_known)
    with profiled() as table:
        ended = _verified(options, command, timing, minimise_known)
        print(table(), file=sys.stderr)
    return ended


def _verified(
    options: VerifyOptions, command: str, timing: TimingOptions | None, minimise_known: bool
) -> tuple[int, Path]:
    for note in () if options.quiet else unused_notes(options.candidates, options.ops):
        say(f"note: {note}")
    done = run_verification(
        options,
        no_progress if options.quiet else run_progress,
        _print_nothing if options.quiet else print_result,
        observe_reading=no_recording_progress if options.quiet else recording_progress,
        announce=_print_nothing if options.quiet else print_interface,
        command=command,
        timing=timing,
        minimise_known=minimise_known,
    )
    finished = done.run
    if finished.bench is not None and not options.quiet:
        say(attempt("the timings", lambda: bench_text(finished), str))
    for note in () if options.quiet else done.unused:
        say(f"not run: {note}")
    for note in () if options.quiet else done.broad:
        say(f"note: {note}")
    place = done.output.finish(finished, done.candidates)
    if finished.bench is not None and done.benchmark is not None:
        done.benchmark.write(finished)
    publish(finished, place, options.ci)
    words = partial(closing_summary, finished, place, quiet=options.quiet)
    say(attempt("the summary", words, partial(_bare, finished)))
    return exit_code(finished), place


def _print_nothing(_outcome: object) -> None:
    """Take the place of the functions that print in a quiet run."""


def _bare(run: Run, fault: str) -> str:
    """Return the verdict, and why it has no summary."""
    return f"{escape_line(fault)}\n{run.verdict}"
