"""`attnproof verify`: run the cases, write the report, return the verdict as exit code."""

from __future__ import annotations

from functools import partial

from attnproof.harness.escaping import escape_line
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Run
from attnproof.harness.report.terminal.bench import bench_text
from attnproof.harness.running import interrupt
from attnproof.harness.verbs.ci import publish
from attnproof.harness.verbs.closing_summary import closing_summary
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import TimingOptions, VerifyOptions
from attnproof.harness.verbs.progress import print_result, run_progress
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
    done = run_verification(
        options,
        run_progress,
        print_result,
        command=command,
        timing=timing,
        minimise_known=minimise_known,
    )
    finished = done.run
    if finished.bench is not None:
        say(attempt("the timings", lambda: bench_text(finished), str))
    for note in done.unused:
        say(f"not run: {note}")
    place = done.output.finish(finished, done.candidates)
    if finished.bench is not None and done.benchmark is not None:
        done.benchmark.write(finished)
    publish(finished, place, options.ci)
    say(attempt("the summary", lambda: closing_summary(finished, place), partial(_bare, finished)))
    return exit_code(finished)


def _bare(run: Run, fault: str) -> str:
    """Return the verdict, and why it has no summary."""
    return f"{escape_line(fault)}\n{run.verdict}"
