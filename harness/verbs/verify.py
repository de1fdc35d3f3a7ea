"""`attnproof verify`: examine, report, and say in the exit code whether to merge."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.run import Finding, OperationResult, Run, RunVerdict
from attnproof.harness.report.terminal.bench import bench_text
from attnproof.harness.running.candidates import BUILT_IN, name_of, resolve
from attnproof.harness.running.errors import INCOMPLETE, MISMATCH, SLOWER, VERIFIED, UsageError
from attnproof.harness.running.parent.environment import describe, gpu_name
from attnproof.harness.running.parent.session import HOST_ONLY, Plan, probe, run
from attnproof.harness.running.task.deviations import with_deviations
from attnproof.harness.running.task.task import Outcome, Settings
from attnproof.harness.verbs.last_words import last_words
from attnproof.harness.verbs.output import Output
from attnproof.harness.verbs.progress import say, shown
from attnproof.harness.verbs.selection import pick_corpus, pick_operations, pick_steps
from attnproof.harness.verbs.timekeeping import BenchOptions, prepare

_EXIT_CODES: dict[RunVerdict, int] = {
    "PASS": VERIFIED,
    "FAIL": MISMATCH,
    "INCOMPLETE": INCOMPLETE,
    "SLOWER": SLOWER,
}
_MOST = 1_000_000
_DEVICES = ("auto", "cpu", "interpreter", "cuda")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line of `verify`, unresolved."""

    ops: str = ""
    candidates: list[str] = field(default_factory=list)
    device: str = "auto"
    examples: int = 200
    steps: int = 200
    seconds: float = 0.0
    seed: int | None = None
    traces: list[Path] = field(default_factory=list)
    corpus: Path | None = None
    out: Path = Path("reports/latest")
    jobs: int = 0
    timeout_s: float = 20.0
    memory_gib: float = 4.0
    remember: bool = True
    deviations: Path | None = None
    """Known deviations of the candidates that have no file of their own."""
    minimise_known: bool = True
    command: str = "attnproof verify"
    bench: BenchOptions | None = None
    """What to time of what was verified, None for nothing."""


def verify(options: Options) -> int:
    """Run, write the report, print the verdict; the exit code (UsageError before the run)."""
    _check(options)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    operations = pick_operations(options.ops)
    candidates = resolve(options.candidates, options.device)
    if options.device == "auto" and not options.candidates and gpu_name() is not None:
        candidates.append(Candidate("optimized-cuda", OPTIMIZED, "cuda"))
    candidates = with_deviations(candidates, options.deviations)
    settings = Settings(
        examples=options.examples,
        seconds=options.seconds,
        seed=seed,
        timeout_s=options.timeout_s,
        memory_bytes=int(options.memory_gib * 2**30),
        examples_db=".attnproof/examples" if options.remember else "",
        minimise_known=options.minimise_known,
        thorough=options.examples >= Options.examples and options.steps >= Options.steps,
    )
    corpus = pick_corpus(options.corpus)
    timekeeper = prepare(options.bench, operations, candidates) if options.bench else None
    if timekeeper is not None:
        corpus += timekeeper.sourced
    steps, notes = pick_steps(options.traces, options.steps, seed)
    lacking = probe([c for c in candidates if c not in BUILT_IN], operations, settings)
    output = Output(options.out)
    # Hypothesis would keep what it learns of the source in the current folder.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(output.scratch / "hypothesis")
    jobs = options.jobs or min(8, len(os.sched_getaffinity(0)))
    plan = Plan(operations, candidates, settings, steps, corpus, jobs, lacking)
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    with shown(options.examples + len(steps)) as watcher:
        outcomes, interrupted = run(plan, output.scratch, watcher)
    record = _record(plan, outcomes, options, interrupted, timekeeper.peer if timekeeper else "")
    record.started = started.isoformat(timespec="seconds")
    record.seconds = round(time.monotonic() - clock, 1)
    record.notes[:0] = [*notes, *_not_looked_at(candidates, len(steps))]
    if timekeeper is not None and not interrupted:
        timekeeper.keep_time(record, plan, output.scratch)
        record.seconds = round(time.monotonic() - clock, 1)
        say(bench_text(record))
    place = output.finish(record, candidates)
    if record.bench is not None and timekeeper is not None:
        timekeeper.write(record)
    say(last_words(record, place))
    return _EXIT_CODES[record.verdict]


def _check(options: Options) -> None:
    for name in ("examples", "steps", "jobs", "seconds", "timeout_s", "memory_gib"):
        value = getattr(options, name)
        if not 0 <= value <= _MOST:
            flag = name.removesuffix("_s").removesuffix("_gib")
            raise UsageError(f"--{flag} is {value}, expected a number from 0 to {_MOST:,}")
    if options.seed is not None and options.seed < 0:
        raise UsageError(f"--seed is {options.seed}, expected a number of at least 0")
    if not options.timeout_s or not options.memory_gib:
        raise UsageError("--timeout and --memory must be above 0")
    if options.traces and not options.steps:
        raise UsageError("--trace with --steps 0 would look at no step of it: drop one of them")
    if options.examples < 1:
        raise UsageError("--examples is 0, expected at least 1")
    if options.device not in _DEVICES:
        raise UsageError(f"--device is {options.device!r}, expected one of {', '.join(_DEVICES)}")


def _record(
    plan: Plan, outcomes: list[Outcome], options: Options, interrupted: bool, peer: str
) -> Run:
    results = [outcome.result for outcome in outcomes]
    for result in results:
        lacks = result.verdict == "NOT OFFERED" and result.reason != HOST_ONLY
        if options.ops and lacks and result.candidate != peer:
            result.verdict, result.reason = "UNVERIFIED", f"asked for by --ops, but {result.reason}"
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    deviations = [deviation for outcome in outcomes for deviation in outcome.deviations]
    for finding in [*findings, *(found.shown for found in deviations if found.shown)]:
        _address(finding, plan.candidates, options)
    verdict, reason = _verdict(results, interrupted)
    return Run(
        verdict=verdict,
        reason=reason,
        seed=plan.settings.seed,
        started="",
        seconds=0.0,
        command=options.command,
        environment=describe(),
        settings={
            "examples": plan.settings.examples,
            "trace steps": len(plan.steps),
            "traces": [path.name for path in options.traces],
            "seconds": plan.settings.seconds,
            "timeout per case (s)": plan.settings.timeout_s,
            "corpus cases": len(plan.corpus),
            "jobs": plan.jobs,
            "interrupted": interrupted,
        },
        operations=results,
        findings=findings,
        notes=_not_called_stale(plan),
        deviations=deviations,
    )


def _address(finding: Finding, candidates: list[Candidate], options: Options) -> None:
    """Fill in the command that shows the finding again."""
    candidate = next(c for c in candidates if c.name == finding.candidate)
    plain = candidate.lane == "cpu" or candidate in BUILT_IN
    device = "" if plain else f" --device {candidate.lane}"
    given = options.deviations is not None and candidate.deviations == str(options.deviations)
    known = f" --deviations {options.deviations}" if given else ""
    path = options.out / finding.case_path
    finding.command = f"attnproof replay {path} --candidate {name_of(candidate)}{device}{known}"


def _not_called_stale(plan: Plan) -> list[str]:
    """Why known deviations that did not show may be there all the same, if that is so."""
    if plan.settings.thorough or not any(candidate.deviations for candidate in plan.candidates):
        return []
    return ["whether known deviations are stale: fewer cases than usual were run"]


def _verdict(results: list[OperationResult], interrupted: bool) -> tuple[RunVerdict, str]:
    unverified = [result for result in results if result.verdict == "UNVERIFIED"]
    reason = ""
    if interrupted:
        reason = "interrupted"
    elif unverified:
        first = unverified[0]
        reason = f"{first.name} on {first.candidate}: {first.reason}"
        if len(unverified) > 1:
            reason += f", and {len(unverified) - 1} more"
    elif not any(result.verdict in ("PASS", "FAIL", "DEVIATES") for result in results):
        reason = "no candidate offers any of the operations"
    if any(result.verdict == "FAIL" for result in results):
        return "FAIL", reason
    return ("INCOMPLETE", reason) if reason else ("PASS", "")


def _not_looked_at(candidates: list[Candidate], steps: int) -> list[str]:
    lanes = {candidate.lane for candidate in candidates}
    notes = []
    if "interpreter" in lanes and steps > 1:
        notes.append(
            f"three in four of the {steps} trace steps in Triton's interpreter, where a kernel "
            "takes tens of milliseconds"
        )
    if "cuda" not in lanes:
        notes.append(
            "compiled kernels on a GPU: this run called every candidate on CPU tensors only, "
            "Triton kernels through the interpreter"
        )
    return notes
