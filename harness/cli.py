"""The command line: one short function per verb. Imports nothing heavy before a verb runs."""

from __future__ import annotations

import gc
import io
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_type_hints

import typer

from attnproof import __version__
from attnproof.harness.escaping import escape_lines, shell_command
from attnproof.harness.streams import output_problem, prepare_streams
from attnproof.harness.verbs.configuration import Setting, configured, settings
from attnproof.harness.verbs.messages import complain, print_traceback
from attnproof.harness.verbs.options import (
    BenchOptions,
    CampaignOptions,
    ConfigOptions,
    DeviationsOptions,
    DiffOptions,
    InitOptions,
    ListOptions,
    MutantsOptions,
    RecordOptions,
    ReplayOptions,
    StrengthOptions,
    VerifyOptions,
)
from attnproof.harness.verbs.usage import EPILOG, START, Verb, misuse_line

app = typer.Typer(
    name="attnproof",
    help=f"Verify and time attention-metadata backends of LLM-serving engines.\n\n{START}",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_verb = partial(app.command, cls=Verb)

_INTERRUPTED = 130
"""Exit code that typer gives to an interrupt before a verb handles interrupts itself."""

_Misuse: Any = typer.BadParameter.__mro__[2]
"""Base class of the errors of the arguments: typer may have its own copy of click."""

_Options = TypeVar("_Options")
_Argument = TypeVar("_Argument")
_CONTEXT = "typer_context"
"""Parameter of a verb's function that typer fills."""


def _plain(options: type[_Options], flags: dict[str, Any]) -> _Options:
    """Return the options of the command line; pyproject.toml sets none of them."""
    return options(**flags)


def _checked_settings(options: type[ConfigOptions], flags: dict[str, Any]) -> list[Setting]:
    from attnproof.harness.verbs.checks import check_values

    check_values(configured(options, flags))
    return settings(options, flags)


def _takes(
    options: type[_Options], make: Callable[[type[_Options], dict[str, Any]], _Argument]
) -> Callable[[Callable[[_Argument], int]], Callable[..., None]]:
    """Return a decorator that gives a verb one option for each field of a dataclass.

    typer reads the options from a signature; the decorated function has the fields as its
    parameters, and ends with the verb's exit code. `make` makes the verb's argument from the
    class and the options of the command line.
    """
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        Parameter(f.name, Parameter.KEYWORD_ONLY, default=_default(f), annotation=hints[f.name])
        for f in fields(options)  # type: ignore[arg-type]
    ]
    parameters.append(Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=typer.Context))

    def decorate(verb: Callable[[_Argument], int]) -> Callable[..., None]:
        def command(**values: Any) -> NoReturn:
            context: typer.Context = values.pop(_CONTEXT)
            flags = {
                name: value for name, value in values.items() if _is_given(context, name, value)
            }
            raise typer.Exit(verb(make(options, flags)))

        command.__name__, command.__doc__ = verb.__name__, verb.__doc__
        command.__annotations__ = {**hints, _CONTEXT: typer.Context}
        command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


@contextmanager
def _without_collections() -> Iterator[None]:
    """Import without collections, each of which goes through all objects of torch."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _is_given(context: typer.Context, name: str, value: Any) -> bool:
    """True if the option is on the command line, and not its default."""
    source = context.get_parameter_source(name)
    return value is not None and (source is None or source.name != "DEFAULT")


def _default(declared: Field[Any]) -> Any:
    """Return the default that typer shows, None for an empty list."""
    if declared.default is not MISSING:
        return declared.default
    return Parameter.empty if declared.default_factory is MISSING else None


@_verb()
@_takes(VerifyOptions, configured)
def verify(options: VerifyOptions) -> int:
    """Verify candidates against the reference, and write the report.

    Exit codes: 0 verified, 1 mismatch, 2 usage, 3 incomplete, 5 infrastructure.
    """
    with _without_collections():
        from attnproof.harness.verbs.verify import verify as run

    return run(options, command=_command_line())


@_verb()
@_takes(BenchOptions, configured)
def bench(options: BenchOptions) -> int:
    """Verify candidates, then time them in turn with a peer.

    Exit codes: 0 verified and timed, 1 mismatch, 2 usage, 3 incomplete (also if the baseline
    cannot be compared), 4 slower than the baseline allows, 5 infrastructure.
    """
    with _without_collections():
        from attnproof.harness.verbs.bench import bench as run

    return run(options, command=_command_line())


@_verb()
@_takes(ReplayOptions, configured)
def replay(options: ReplayOptions) -> int:
    """Run one case again; print the batch, and expected values beside those of the candidate.

    Exit codes: 0 the case passes, or fails by known deviations only; 1 it fails; 2 usage;
    3 the operation is not offered, or the device is missing; 5 infrastructure.
    """
    with _without_collections():
        from attnproof.harness.verbs.replay import replay as run

    return run(options, command=_command_line())


@_verb(context_settings={"allow_interspersed_args": False})
@_takes(RecordOptions, _plain)
def record(options: RecordOptions) -> int:
    """Run a command that serves with vLLM, and record the batches of its engine steps.

    Numbers only, no text and no tokens. Exit codes: the command's; 2 usage; 3 if the command
    succeeds and no step was recorded.
    """
    from attnproof.harness.verbs.record_command import record as run

    return run(options)


@_verb()
@_takes(DiffOptions, _plain)
def diff(options: DiffOptions) -> int:
    """Compare two runs: new, fixed and same findings, lost and gained verdicts.

    Exit codes: 0 no new finding, 1 new findings, 2 usage.
    """
    from attnproof.harness.verbs.diff import diff as run

    return run(options)


@_verb()
@_takes(ConfigOptions, _checked_settings)
def config(listed: list[Setting]) -> int:
    """Print the value of each option of `verify`, and where it came from.

    Takes the options of `verify`. Exit codes: 0 printed, 2 usage.
    """
    from attnproof.harness.verbs.config import print_settings

    print_settings(listed)
    return 0


@_verb()
@_takes(DeviationsOptions, _plain)
def deviations(options: DeviationsOptions) -> int:
    """Draft a file of known deviations from the findings of a run.

    Exit codes: 0 written, 2 usage.
    """
    from attnproof.harness.verbs.draft import write_draft

    write_draft(options)
    return 0


@_verb()
@_takes(InitOptions, _plain)
def init(options: InitOptions) -> int:
    """Write a file that defines an operation of your own, from a function's signature.

    The function is not imported. Exit codes: 0 written, 2 usage.
    """
    from attnproof.harness.verbs.scaffold import write_scaffold

    write_scaffold(options)
    return 0


@_verb(name="list")
@_takes(ListOptions, _plain)
def list_(options: ListOptions) -> int:
    """Print the operations, or one in full: signature, oracles, candidates that offer it.

    Exit codes: 0 printed, 2 usage, 5 a candidate cannot be imported.
    """
    if options.stub:
        from attnproof.harness.running.engine_stub import check_stub

        check_stub(options.stub)
    if options in (ListOptions(), ListOptions(wide=True)):
        from attnproof.harness.verbs.operation_table import print_index, read_index

        print_index(read_index(), wide=options.wide)
        return 0
    with _without_collections():
        from attnproof.harness.verbs.listing import show_operations

    show_operations(options)
    return 0


@_verb()
def doctor() -> NoReturn:
    """Check this machine: exit code 0 if `verify` can run on it, 5 if not."""
    from attnproof.harness.verbs.doctor import examine_machine

    raise typer.Exit(examine_machine())


@_verb()
@_takes(MutantsOptions, configured)
def mutants(options: MutantsOptions) -> int:
    """Change one line of the candidate at a time: which changes would no case notice?

    Exit codes: 0 judged, 1 the score is below --fail-under, 2 usage, 3 interrupted.
    """
    with _without_collections():
        from attnproof.harness.verbs.mutants import examine_mutants

    return examine_mutants(options)


@_verb()
@_takes(CampaignOptions, configured)
def campaign(options: CampaignOptions) -> int:
    """Verify candidates for hours, on one machine or a Ray cluster; goes on where it was ended.

    Exit codes: those of `verify`; 5 also if no cluster answers.
    """
    with _without_collections():
        from attnproof.harness.verbs.campaign import campaign as run

    return run(options, command=_command_line())


@_verb()
@_takes(StrengthOptions, _plain)
def strength(options: StrengthOptions) -> int:
    """Verify bugs that shipped, and the same code without them: recall and false alarms.

    Exit codes: 0 all found without a false alarm, 1 a miss or a false alarm, 2 usage.
    """
    with _without_collections():
        from attnproof.harness.verbs.strength import measure

    return measure(options)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"attnproof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options of all verbs."""


def _command_line() -> str:
    return shell_command(["attnproof", *sys.argv[1:]])


def main() -> NoReturn:
    """Run the command line and exit; print an expected error as one line on stderr."""
    sys.exit(run_command())


def run_command() -> int:
    """Run the command line; return the exit code, with an expected error as one line on stderr."""
    from attnproof.harness.running.errors import INFRASTRUCTURE

    prepare_streams()
    try:
        Path.cwd()
    except OSError as error:  # torch would end the process
        complain(f"there is no current folder: {error.strerror}")
        return INFRASTRUCTURE
    code = _run()
    if problem := output_problem():
        complain(f"the output cannot be written: {problem}")
        return INFRASTRUCTURE
    return code


def _run() -> int:
    """Run the verb; return the exit code."""
    from attnproof.harness.running.errors import INCOMPLETE, INFRASTRUCTURE, AttnproofError

    try:
        code = int(app(standalone_mode=False) or 0)
    except _Misuse as misuse:
        if "\n" in misuse.format_message():  # the help, for a call without arguments
            usage = io.StringIO()
            misuse.show(usage)
            print(escape_lines(usage.getvalue()), end="", file=sys.stderr)
        else:
            complain(misuse_line(misuse, sys.argv[1:]))
        return int(misuse.exit_code)
    except AttnproofError as error:
        complain(error)
        return error.exit_code
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:  # exit code 1 of an uncaught exception would read as a mismatch
        if limit := _address_space_limit():
            complain(f"{error}; the limit of {limit} on address space (ulimit -v) may be too low")
            return INFRASTRUCTURE
        print_traceback(error)
        complain("this is a bug in attnproof; please report it")
        return INFRASTRUCTURE
    if code == _INTERRUPTED:
        complain("interrupted before anything was verified")
        return INCOMPLETE
    return code


def _address_space_limit() -> str:
    """Return the process's limit on address space, "" without one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "" if limit == resource.RLIM_INFINITY else f"{limit / 2**30:.1f} GiB"


if __name__ == "__main__":
    main()
