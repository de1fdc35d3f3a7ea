"""The options of each verb: name, type, default and help text, declared once.

`harness.cli` makes the command line from these classes, and the verbs take their objects. This
module is loaded for `--help`, so it imports nothing heavy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

_Ops = Annotated[
    str,
    typer.Option(
        help="operations or patterns such as 'split_*', separated by commas (default: all)"
    ),
]
_Traces = Annotated[
    list[Path],
    typer.Option("--trace", help="file of requests; repeatable (default: a built-in sampler)"),
]
_Deviations = Annotated[
    list[str],
    typer.Option(
        help="file of known deviations, or a shipped list such as vllm:0.11, for candidates "
        "without a file of their own; repeatable"
    ),
]


@dataclass(frozen=True, kw_only=True)
class CandidateOptions:
    """Candidates, as named on the command line."""

    candidates: Annotated[
        list[str],
        typer.Option(
            "--candidate",
            help="built-in name, installed name, dotted module, file.py, package folder, a table "
            "(file.toml) or a Solution of flashinfer-bench (file.json); repeatable",
        ),
    ] = field(default_factory=list)
    definitions: Annotated[
        list[str],
        typer.Option(
            "--operations",
            "--definition",
            help="file.py or module that defines operations of your own, or a Definition of "
            "flashinfer-bench (file.json), whose reference is executed; repeatable",
        ),
    ] = field(default_factory=list)
    stub: Annotated[
        str,
        typer.Option(
            help="vllm: candidates that import vLLM get a stub of it, where it is not installed"
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class CallOptions(CandidateOptions):
    """Options of every verb that calls candidates."""

    device: Annotated[
        str,
        typer.Option(
            help="auto, interpreter (CPU tensors, Triton interpreted) or a device of torch, such "
            "as cpu, cuda, cuda:1, xpu or npu:0"
        ),
    ] = "auto"
    out: Annotated[Path, typer.Option(help="folder of the report")] = Path("reports/latest")
    contract: Annotated[
        str,
        typer.Option(
            help="engine (fail on wrong results and unsafe behaviour on batches of an engine) or "
            "strict (on every finding, as built-in candidates always are)"
        ),
    ] = "engine"
    fail_on: Annotated[
        str,
        typer.Option(
            help="classes of findings to fail on instead, separated by commas: wrong-result, "
            "unsafe, contract, type"
        ),
    ] = ""
    interface: Annotated[
        str,
        typer.Option(
            help="engine whose batches and signatures the candidates use: vllm-0.10, vllm-0.11, "
            "vllm-0.32, sglang-0.5 or any, the batches of all (default: that of the classes that "
            "the candidates name, or any)"
        ),
    ] = ""
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="seconds of work or idleness allowed for one case")
    ] = 20.0


@dataclass(frozen=True, kw_only=True)
class RunOptions(CallOptions):
    """Options of the verbs that verify operations."""

    ops: _Ops = ""
    jobs: Annotated[
        int, typer.Option(help="operations verified at a time, 0 for one per core, at most 8")
    ] = 0
    memory_gib: Annotated[
        float, typer.Option("--memory", help="GiB that a candidate may allocate")
    ] = 4.0


@dataclass(frozen=True, kw_only=True)
class VerifyOptions(RunOptions):
    """Options of `verify`."""

    examples: Annotated[
        int | None,
        typer.Option(
            help="different cases drawn for each operation, a sequence of calls for two of them "
            "(default: 207; in runs of many operations down to 36)"
        ),
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            help="engine steps taken from the traces, 0 for none (default: one for four cases)"
        ),
    ] = None
    vary: Annotated[
        bool,
        typer.Option(
            "--vary/--no-vary",
            help="also run cases with several critical sizes at once, variations of others, and "
            "calls with an altered value",
        ),
    ] = True
    depth: Annotated[
        str,
        typer.Option(
            help="quick (18 drawn cases and 8 engine steps for each operation), default, or "
            "thorough (207 and 200, all of them where a case is costly too, of which others run "
            "1 in 8; also judges optimized-unchecked)"
        ),
    ] = "default"
    seconds: Annotated[float, typer.Option(help="further time to draw cases, per operation")] = 0.0
    seed: Annotated[int | None, typer.Option(help="seed of the cases (default: a new one)")] = None
    traces: _Traces = field(default_factory=list)
    recorded: Annotated[
        list[Path],
        typer.Option(
            help="recording of a live engine: its batches are cases, and its own results are "
            "compared with the reference's; repeatable"
        ),
    ] = field(default_factory=list)
    strength: Annotated[
        list[Path],
        typer.Option(
            help="file of `attnproof mutants` or `attnproof strength` for the report; repeatable "
            "(default: those in reports/, if there are any)"
        ),
    ] = field(default_factory=list)
    corpus: Annotated[Path | None, typer.Option(help="folder of saved cases to run too")] = None
    remember: Annotated[
        bool,
        typer.Option(
            "--remember/--no-remember", help="keep failing cases in .attnproof/ and run them again"
        ),
    ] = True
    deviations: _Deviations = field(default_factory=list)
    first: Annotated[bool, typer.Option("-x", help="begin nothing after the first finding")] = False
    maxfail: Annotated[
        int, typer.Option(help="number of findings after which nothing more is begun, 0 for all")
    ] = 0
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="print the findings and the last line only")
    ] = False
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="print summary.json to standard output, all else to standard error"
        ),
    ] = False
    bench: Annotated[bool, typer.Option("--bench", help="time the verified operations too")] = False
    profile: Annotated[
        bool,
        typer.Option("--profile", help="print the run's CPU seconds by phase and process"),
    ] = False
    base: Annotated[
        Path | None,
        typer.Option(help="report of an earlier run: findings that are new since it come first"),
    ] = None
    ci: Annotated[
        str,
        typer.Option(
            help="github (annotations, step summary, outputs) or gitlab (code-quality report)"
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class TimingOptions:
    """Options of timing."""

    seconds: Annotated[
        float,
        typer.Option(
            help="time of the timing in all, exceeded only for seven samples of each workload; "
            "the verification before it and the repeats against a baseline come on top"
        ),
    ] = 90.0
    seed: Annotated[
        int, typer.Option(help="seed of the cases and workloads; a baseline needs the same seed")
    ] = 0
    traces: _Traces = field(default_factory=list)
    recorded: Annotated[
        list[Path],
        typer.Option(help="recording of a live engine, or a folder of them; repeatable"),
    ] = field(default_factory=list)
    steps: Annotated[
        int, typer.Option(help="engine steps timed of each trace and recording, 0 for none")
    ] = 24
    save_baseline: Annotated[str, typer.Option(help="name under which to save the times")] = ""
    baseline: Annotated[str, typer.Option(help="name of the saved times to compare with")] = ""
    baselines: Annotated[Path, typer.Option(help="folder of baselines")] = Path("reports/baselines")
    markdown: Annotated[Path | None, typer.Option(help="file for the tables as Markdown")] = None

    @property
    def peers(self) -> int:
        """Number of the last candidates that the others are compared with."""
        return 1


@dataclass(frozen=True, kw_only=True)
class BenchOptions(TimingOptions, RunOptions):
    """Options of `bench`."""

    deviations: _Deviations = field(default_factory=list)
    device: Annotated[str, typer.Option(help="auto (the GPU if there is one), cpu or cuda")] = (
        "auto"
    )
    against: Annotated[
        list[str],
        typer.Option(
            help="candidate to compare with; repeatable (default: torch-sdpa if --ops is attention "
            "alone, else vllm, or the reference; on cuda torch-sdpa and every engine that can be "
            "imported)"
        ),
    ] = field(default_factory=list)

    @property
    def peers(self) -> int:
        """Number of peers, which are the last candidates."""
        return len(self.against)


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(CallOptions):
    """Argument and options of `replay`."""

    case: Annotated[
        str,
        typer.Argument(
            help="file of a case, - for standard input, or id of a case of the last run"
        ),
    ]
    deviations: _Deviations = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ConfigOptions(VerifyOptions):
    """Options of `config`: those of `verify`. `--json` prints JSON."""


@dataclass(frozen=True, kw_only=True)
class DeviationsOptions:
    """Options of `deviations`."""

    draft: Annotated[
        Path,
        typer.Option(metavar="RUN", help="report of the run to draft from, or its summary.json"),
    ]
    out: Annotated[
        Path | None, typer.Option(help="file to write; it must not exist (default: print it)")
    ] = None


@dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """Arguments and options of `diff`."""

    old: Annotated[
        Path,
        typer.Argument(metavar="RUN_A", help="report of the older run, or its summary.json"),
    ]
    new: Annotated[
        Path, typer.Argument(metavar="RUN_B", help="report of the newer run, or its summary.json")
    ]
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Argument and options of `init`."""

    path: Annotated[Path, typer.Argument(metavar="FILE", help="file to write; it must not exist")]
    source: Annotated[
        str,
        typer.Option("--from", metavar="FILE:FUNCTION", help="function to define an operation of"),
    ]


@dataclass(frozen=True, kw_only=True)
class ListOptions(CandidateOptions):
    """Arguments and options of `list`."""

    operations: Annotated[
        list[str],
        typer.Argument(
            help="operations or patterns such as 'split_*' to show in full (default: a table)"
        ),
    ] = field(default_factory=list)
    markdown: Annotated[
        bool, typer.Option("--markdown", help="print a page on every operation")
    ] = False
    wide: Annotated[
        bool, typer.Option("--wide", help="print all columns, boundaries and faults")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """Arguments and options of `record`."""

    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="command that runs the engine, after --"),
    ]
    out: Annotated[Path, typer.Option(help="folder of the recording, a file for each process")] = (
        Path("reports/recording")
    )
    sample: Annotated[int, typer.Option(help="record one in so many engine steps")] = 1
    limit: Annotated[
        int, typer.Option(help="recorded steps of a process after which it stops, 0 for all")
    ] = 0


MEMORY_BYTES = int(RunOptions.memory_gib * 2**30)
"""Memory limit of a candidate in verbs without `--memory`."""


@dataclass(frozen=True, kw_only=True)
class StrengthOptions:
    """Options of `attnproof strength`."""

    pairs: Annotated[
        list[str],
        typer.Argument(help="threads (repository#number) or operations (default: all)"),
    ] = field(default_factory=list)
    seeds: Annotated[int, typer.Option(help="runs of each pair, with consecutive seeds")] = 1
    seed: Annotated[int, typer.Option(help="first seed")] = 1
    depth: Annotated[str, typer.Option(help="depth of each run: quick, default or thorough")] = (
        "default"
    )
    jobs: Annotated[int, typer.Option(help="pairs verified at a time (default: CPUs)")] = 0
    json: Annotated[bool, typer.Option("--json", help="print the results as JSON")] = False
    out: Annotated[Path, typer.Option(help="folder of strength.json")] = Path("reports/strength")


@dataclass(frozen=True, kw_only=True)
class CampaignOptions(RunOptions):
    """Options of `attnproof campaign`."""

    out: Annotated[
        Path, typer.Option(help="folder of the campaign and its report; it goes on from there")
    ] = Path("reports/campaign")
    jobs: Annotated[
        int, typer.Option(help="tasks at a time without --address, 0 for one per core")
    ] = 0
    hours: Annotated[
        float, typer.Option(help="hours to work, including those before it was continued")
    ] = 1.0
    tasks: Annotated[
        int, typer.Option(help="most tasks, including those before it was continued; 0: no limit")
    ] = 0
    examples: Annotated[int, typer.Option(help="cases drawn by each task")] = 207
    seed: Annotated[int | None, typer.Option(help="seed of the cases (default: a new one)")] = None
    address: Annotated[
        str,
        typer.Option(
            help="Ray cluster that this machine belongs to: auto or HOST:PORT (default: start Ray "
            "on this machine)"
        ),
    ] = ""
    deviations: _Deviations = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class MutantsOptions(CallOptions):
    """Options of `attnproof mutants`."""

    out: Annotated[Path, typer.Option(help="folder of the results")] = Path("reports/mutants")
    ops: _Ops = ""
    examples: Annotated[int, typer.Option(help="cases drawn for each operation")] = 150
    sample: Annotated[int, typer.Option(help="judge so many mutants, chosen at random; 0: all")] = 0
    only: Annotated[
        Path | None, typer.Option(help="file with the ids of the mutants to judge, one a line")
    ] = None
    deep: Annotated[
        int, typer.Option(help="judge survivors by so many further cases, of another seed")
    ] = 0
    budget: Annotated[
        float | None, typer.Option(help="seconds for each mutant (default: 5; reference: 15)")
    ] = None
    seed: Annotated[int, typer.Option(help="seed of the cases and of the sample")] = 1
    jobs: Annotated[int, typer.Option(help="mutants judged at a time (default: CPUs)")] = 0
    restart: Annotated[
        bool, typer.Option("--restart", help="judge again what an earlier run has judged")
    ] = False
    fail_under: Annotated[float, typer.Option(help="lowest score in percent with exit code 0")] = (
        0.0
    )
