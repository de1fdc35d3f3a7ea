"""The command line: one short function a verb. Imports nothing heavy before a verb runs."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from attnproof import __version__

app = typer.Typer(
    name="attnproof",
    help="Prove that attention-metadata backends compute what they should.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_CANDIDATE = "built-in name, installed name, dotted module, file.py or package folder; repeatable"
_DEVIATIONS = "file of known deviations, for candidates without one of their own"
_DEVICE = "auto, cpu, interpreter (CPU tensors, Triton interpreted) or cuda"
_TIMED_DEVICE = "auto (the GPU if there is one), cpu or cuda"
_INTERRUPTED = 130
"""What typer makes of an interrupt that comes before a verb listens for it."""
_OUT = "folder of the report"
_TIMEOUT = "seconds that a candidate may take over one case"

Candidates = Annotated[list[str] | None, typer.Option("--candidate", help=_CANDIDATE)]
Deviations = Annotated[Path | None, typer.Option(help=_DEVIATIONS)]
Device = Annotated[str, typer.Option(help=_DEVICE)]
Out = Annotated[Path, typer.Option(help=_OUT)]
Timeout = Annotated[float, typer.Option(help=_TIMEOUT)]


@app.command()
def verify(
    ops: Annotated[str, typer.Option(help="operations, separated by commas (default: all)")] = "",
    candidate: Candidates = None,
    device: Device = "auto",
    examples: Annotated[int, typer.Option(help="cases drawn for each operation")] = 200,
    steps: Annotated[int, typer.Option(help="steps taken from the traces, 0 for none")] = 200,
    seconds: Annotated[float, typer.Option(help="more fuzzing for each operation")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="default: another one each time")] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="file of requests; repeatable (default: a built-in sampler)"),
    ] = None,
    corpus: Annotated[Path | None, typer.Option(help="folder of saved cases to run too")] = None,
    out: Out = Path("reports/latest"),
    jobs: Annotated[int, typer.Option(help="operations at a time (default: one a core)")] = 0,
    timeout: Timeout = 20.0,
    memory: Annotated[float, typer.Option(help="GiB that a candidate may allocate")] = 4.0,
    remember: Annotated[
        bool, typer.Option(help="keep failing cases in .attnproof/ and try them again")
    ] = True,
    deviations: Deviations = None,
    bench: Annotated[bool, typer.Option("--bench", help="time what was verified, too")] = False,
) -> NoReturn:
    """Verify candidates against the reference, and write the report.

    Exit codes: 0 verified, 1 mismatch, 2 usage, 3 incomplete, 5 infrastructure.
    """
    from attnproof.harness.verbs.timekeeping import BenchOptions
    from attnproof.harness.verbs.verify import Options
    from attnproof.harness.verbs.verify import verify as run

    options = Options(
        ops=ops,
        candidates=candidate or [],
        device=device,
        examples=examples,
        steps=steps,
        seconds=seconds,
        seed=seed,
        traces=trace or [],
        corpus=corpus,
        out=out,
        jobs=jobs,
        timeout_s=timeout,
        memory_gib=memory,
        remember=remember,
        deviations=deviations,
        command=" ".join(["attnproof", *sys.argv[1:]]),
        bench=BenchOptions(traces=trace or []) if bench else None,
    )
    _leave(run(options))


@app.command()
def bench(
    ops: Annotated[str, typer.Option(help="operations, separated by commas (default: all)")] = "",
    candidate: Candidates = None,
    against: Annotated[
        str, typer.Option(help="candidate to compare with (default: vllm, or the reference)")
    ] = "",
    device: Annotated[str, typer.Option(help=_TIMED_DEVICE)] = "auto",
    seconds: Annotated[float, typer.Option(help="to spend on timing, verifying apart")] = 90.0,
    seed: Annotated[int, typer.Option(help="of the workloads; baselines need the same")] = 0,
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="file of requests; repeatable (default: a built-in sampler)"),
    ] = None,
    steps: Annotated[int, typer.Option(help="engine steps of each trace, 0 for none")] = 24,
    save_baseline: Annotated[str, typer.Option(help="name under which to keep the times")] = "",
    baseline: Annotated[str, typer.Option(help="name of the times to compare with")] = "",
    baselines: Annotated[Path, typer.Option(help="folder of baselines")] = Path(
        "reports/baselines"
    ),
    markdown: Annotated[Path | None, typer.Option(help="file for the tables as Markdown")] = None,
    out: Out = Path("reports/latest"),
    jobs: Annotated[int, typer.Option(help="operations verified at a time")] = 0,
    timeout: Timeout = 20.0,
    memory: Annotated[float, typer.Option(help="GiB that a candidate may allocate")] = 4.0,
) -> NoReturn:
    """Verify, then time candidates beside a peer, in turn in one process.

    Exit codes: 0, 1 mismatch, 2 usage, 3 incomplete (a baseline that cannot be compared
    with, too), 4 slower than the baseline allows, 5 infrastructure.
    """
    from attnproof.harness.verbs.bench import Options
    from attnproof.harness.verbs.bench import bench as run
    from attnproof.harness.verbs.timekeeping import BenchOptions

    timing = BenchOptions(
        seconds=seconds,
        seed=seed,
        traces=trace or [],
        steps=steps,
        save_baseline=save_baseline,
        baseline=baseline,
        baselines=baselines,
        markdown=markdown,
    )
    options = Options(
        ops=ops,
        candidates=candidate or [],
        against=against,
        device=device,
        out=out,
        jobs=jobs,
        timeout_s=timeout,
        memory_gib=memory,
        command=" ".join(["attnproof", *sys.argv[1:]]),
        bench=timing,
    )
    _leave(run(options))


@app.command()
def replay(
    case: Annotated[str, typer.Argument(help="file of a case, or the id of one of the last run")],
    candidate: Candidates = None,
    device: Device = "auto",
    out: Out = Path("reports/latest"),
    timeout: Timeout = 20.0,
    deviations: Deviations = None,
) -> NoReturn:
    """Run one case again: the batch drawn, expected beside got.

    Exit codes: 0 it passes, or fails by known deviations only; 1 it fails, 2 usage,
    3 not offered or no such device.
    """
    from attnproof.harness.verbs.replay import replay as run

    _leave(run(case, candidate or [], device, out, timeout, deviations))


@app.command(name="list")
def list_(
    operation: Annotated[
        list[str] | None, typer.Argument(help="show all about these (default: a table of all)")
    ] = None,
    candidate: Candidates = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="as docs/operations.md has it")
    ] = False,
) -> NoReturn:
    """Show the operations: section of SPEC.md, oracles, who offers them.

    Exit codes: 0, 2 usage, 5 a candidate cannot be imported.
    """
    from attnproof.harness.verbs.listing import show_operations

    show_operations(operation or [], candidate or [], markdown)
    _leave(0)


@app.command()
def doctor() -> NoReturn:
    """Check this machine: exit code 0 if `verify` can run on it, 5 if not."""
    from attnproof.harness.verbs.doctor import examine_machine

    _leave(examine_machine())


def _version(value: bool) -> None:
    if value:
        typer.echo(f"attnproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Options of all verbs."""


def _leave(code: int) -> NoReturn:
    raise typer.Exit(code)


def main() -> None:
    """Run the command line; an expected error is one line on stderr."""
    from attnproof.harness.running.errors import INCOMPLETE, INFRASTRUCTURE, AttnproofError

    try:
        app()
    except AttnproofError as error:
        print(f"attnproof: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, SystemExit) as ending:
        if isinstance(ending, SystemExit) and ending.code != _INTERRUPTED:
            raise
        print("attnproof: interrupted before anything was verified", file=sys.stderr)
        sys.exit(INCOMPLETE)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(INFRASTRUCTURE)
    except Exception:  # a mistake of ours must not look like a mismatch
        traceback.print_exc()
        print("attnproof: this is a bug in attnproof", file=sys.stderr)
        sys.exit(INFRASTRUCTURE)


if __name__ == "__main__":
    main()
