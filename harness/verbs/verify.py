"""`attnproof verify`: run the cases, write the report, return the verdict as exit code."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from functools import partial

import msgspec

from attnproof.harness.escaping import escape_line, shell_command, shell_path
from attnproof.harness.guard import attempt
from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate
from attnproof.harness.model.case import EngineStep
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import EXPECTED, Cause, Finding, OperationResult, Run, RunVerdict
from attnproof.harness.model.verdict import ENGINE, STRICT
from attnproof.harness.report.shared.comparison import read_run, with_base
from attnproof.harness.report.terminal.bench import bench_text
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import BUILT_IN, name_of, resolve, with_interface
from attnproof.harness.running.errors import (
    INCOMPLETE,
    INFRASTRUCTURE,
    MISMATCH,
    SLOWER,
    VERIFIED,
)
from attnproof.harness.running.parent.environment import describe, gpu_name
from attnproof.harness.running.parent.plan import Plan, probe, steps_on
from attnproof.harness.running.parent.run_builder import RunBuilder
from attnproof.harness.running.parent.session import run
from attnproof.harness.running.recordings import read_recordings
from attnproof.harness.running.task.deviations import with_deviations
from attnproof.harness.running.task.task import Outcome, Settings, is_costly
from attnproof.harness.verbs.base import check_base
from attnproof.harness.verbs.benchmark import prepare
from attnproof.harness.verbs.checks import check_run, check_timing
from attnproof.harness.verbs.ci import check_ci, publish
from attnproof.harness.verbs.closing_summary import closing_summary
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import TimingOptions, VerifyOptions
from attnproof.harness.verbs.output import Output
from attnproof.harness.verbs.progress import print_result, run_progress
from attnproof.harness.verbs.selection import (
    pick_corpus,
    pick_operations,
    pick_steps,
    unused_corpus,
    with_contract,
)

_EXIT_CODES: dict[RunVerdict, int] = {
    "PASS": VERIFIED,
    "FAIL": MISMATCH,
    "INCOMPLETE": INCOMPLETE,
    "SLOWER": SLOWER,
}
_DEFAULT_JOBS = 8
"""Most operations verified at a time unless `--jobs` says otherwise."""
_THOROUGH_STEPS = 200
"""Engine steps of a thorough run."""


@interrupt.restored_handlers()
def verify(
    options: VerifyOptions,
    *,
    command: str = "attnproof verify",
    timing: TimingOptions | None = None,
    minimise_known: bool = True,
) -> int:
    """Run the cases, write the report, print the verdict; return the exit code.

    `command` is the command line that the report names. Verified operations are timed if
    `timing` is given or `options.bench` is set. Cases of known deviations are shrunk unless
    `minimise_known` is False. Raise UsageError before anything runs.
    """
    check_run(options)
    check_ci(options.ci)
    base = read_run(options.base) if options.base else None
    if timing is None and options.bench:
        timing = TimingOptions(traces=options.traces)
    if timing is not None:
        check_timing(timing)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    operations = pick_operations(options.ops)
    candidates = _candidates(options)
    settings = _settings(options, seed, minimise_known=minimise_known)
    corpus = pick_corpus(options.corpus)
    unused = unused_corpus(corpus, operations, candidates)
    benchmark = prepare(timing, operations, candidates) if timing else None
    if benchmark is not None:
        corpus += benchmark.cases
    if base is not None:
        check_base(base, operations, candidates, options)
    steps, held, notes = _steps(options, operations, seed)
    lacking = probe([c for c in candidates if c not in BUILT_IN], operations, settings)
    output = Output(options.out)
    # Otherwise Hypothesis writes constants of the source into the current folder.
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(output.scratch / "hypothesis")
    jobs = options.jobs or min(_DEFAULT_JOBS, len(os.sched_getaffinity(0)))
    plan = Plan(operations, candidates, settings, steps, corpus, jobs, lacking)
    started, clock = datetime.datetime.now(datetime.UTC), time.monotonic()
    with run_progress(options.examples + len(steps)) as progress:
        outcomes, interrupted = run(plan, output.scratch, progress)
    peer = benchmark.peer if benchmark else ""
    record = _record(plan, [*held, *outcomes], options, command, interrupted, peer)
    record.started = started.isoformat(timespec="seconds")
    record.seconds = round(time.monotonic() - clock, 1)
    record.notes[:0] = [*notes, *unused, *_coverage_notes(plan)]
    if benchmark is not None and not interrupted:
        benchmark.time(record, plan, output.scratch)
        record.seconds = round(time.monotonic() - clock, 1)
    finished = record.build()
    if base is not None:
        finished = with_base(finished, base, str(options.base))
    if finished.bench is not None:
        say(attempt("the timings", lambda: bench_text(finished), str))
    for note in unused:
        say(f"not run: {note}")
    place = output.finish(finished, candidates)
    if finished.bench is not None and benchmark is not None:
        benchmark.write(finished)
    publish(finished, place, options.ci)
    say(attempt("the summary", lambda: closing_summary(finished, place), partial(_bare, finished)))
    return _exit_code(finished)


def _exit_code(run: Run) -> int:
    """Return the exit code of the verdict; a fault of the harness or the machine is none of it."""
    faults = (Cause.INVALID_CASE, Cause.TASK_DIED, Cause.MACHINE)
    if run.verdict == "INCOMPLETE" and any(result.cause in faults for result in run.operations):
        return INFRASTRUCTURE
    return _EXIT_CODES[run.verdict]


def _candidates(options: VerifyOptions) -> list[Candidate]:
    """Return the candidates with interface, deviations and contract. Raise UsageError."""
    candidates = resolve(options.candidates, options.device)
    if options.device == "auto" and not options.candidates and gpu_name() is not None:
        candidates.append(Candidate("optimized-cuda", OPTIMIZED, "cuda"))
    candidates = with_interface(candidates, options.interface)
    return with_contract(with_deviations(candidates, options.deviations), options)


def _settings(options: VerifyOptions, seed: int, *, minimise_known: bool) -> Settings:
    return Settings(
        examples=options.examples,
        seconds=options.seconds,
        seed=seed,
        timeout_s=options.timeout_s,
        memory_bytes=int(options.memory_gib * 2**30),
        examples_db=".attnproof/examples" if options.remember else "",
        minimise_known=minimise_known,
        usual_depth=options.examples >= VerifyOptions.examples
        and options.steps >= VerifyOptions.steps,
        costly_share=1 if options.thorough else Settings().costly_share,
    )


def _steps(
    options: VerifyOptions, operations: list[Operation], seed: int
) -> tuple[list[EngineStep], list[Outcome], list[str]]:
    """Return engine steps, the outcomes of recordings, and a note on each file."""
    wanted = max(options.steps, _THOROUGH_STEPS) if options.thorough else options.steps
    steps, notes = pick_steps(options.traces, wanted, seed)
    recorded, held, lines = read_recordings(options.recorded, wanted, seed, operations)
    for outcome in held:
        print_result(outcome)
    return steps + recorded, held, notes + lines


def _bare(run: Run, fault: str) -> str:
    """Return the verdict, and why it has no summary."""
    return f"{escape_line(fault)}\n{run.verdict}"


def _record(
    plan: Plan,
    outcomes: list[Outcome],
    options: VerifyOptions,
    command: str,
    interrupted: bool,
    peer: str,
) -> RunBuilder:
    results = [outcome.result for outcome in outcomes]
    if options.ops:
        results = [r if r.candidate == peer else _unverified_if_absent(r) for r in results]
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    advice = [finding for outcome in outcomes for finding in outcome.advice]
    deviations = [deviation for outcome in outcomes for deviation in outcome.deviations]
    verdict, reason = _verdict(results, interrupted)
    return RunBuilder(
        verdict=verdict,
        reason=reason,
        seed=plan.settings.seed,
        started="",
        command=command,
        environment=describe(),
        settings={
            "examples": plan.settings.examples,
            "trace steps": sum(step.origin == "trace" for step in plan.steps),
            "recorded batches": sum(step.origin == "recorded" for step in plan.steps),
            "traces": [path.name for path in options.traces],
            "recordings": [path.name for path in options.recorded],
            "seconds": plan.settings.seconds,
            "timeout per case (s)": plan.settings.timeout_s,
            "corpus cases": len(plan.corpus),
            "jobs": plan.jobs,
            "contract": options.fail_on or options.contract,
            "interface": options.interface,
            "interrupted": interrupted,
        },
        operations=results,
        findings=[_with_command(finding, plan.candidates, options) for finding in findings],
        advice=[_with_command(finding, plan.candidates, options) for finding in advice],
        notes=[*_stale_notes(plan), *(note for outcome in outcomes for note in outcome.notes)],
        deviations=[
            msgspec.structs.replace(
                found, shown=found.shown and _with_command(found.shown, plan.candidates, options)
            )
            for found in deviations
        ],
    )


def _unverified_if_absent(result: OperationResult) -> OperationResult:
    """Return the result; UNVERIFIED if the candidate lacks an operation that --ops names."""
    if result.verdict != "NOT OFFERED" or result.cause in EXPECTED:
        return result
    return msgspec.structs.replace(
        result,
        verdict="UNVERIFIED",
        reason=f"named in --ops, but {result.reason}",
        cause=Cause.NAMED_IN_OPS,
    )


def _with_command(finding: Finding, candidates: list[Candidate], options: VerifyOptions) -> Finding:
    """Return the finding with the command that replays it."""
    if finding.command:
        return finding
    candidate = next(c for c in candidates if c.name == finding.candidate)
    plain = candidate.lane == "cpu" or candidate in BUILT_IN
    given = options.deviations is not None and candidate.deviations == str(options.deviations)
    words = ["attnproof", "replay", shell_path(options.out / finding.case_path)]
    words += ["--candidate", shell_path(name_of(candidate))]
    words += [] if plain else ["--device", candidate.lane]
    usual = ENGINE if candidate.target not in (OPTIMIZED, REFERENCE) else STRICT
    words += [] if finding.kind in usual else ["--contract", "strict"]
    words += ["--deviations", shell_path(options.deviations)] if given else []
    words += ["--interface", options.interface] if options.interface else []
    return msgspec.structs.replace(finding, command=shell_command(words))


def _stale_notes(plan: Plan) -> list[str]:
    """Return a note if the run is too small to call known deviations stale."""
    if plan.settings.usual_depth or not any(candidate.deviations for candidate in plan.candidates):
        return []
    return ["stale known deviations: fewer cases than by default were run"]


def _verdict(results: list[OperationResult], interrupted: bool) -> tuple[RunVerdict, str]:
    """Return the verdict on the run, and the reason why it is incomplete."""
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


def _coverage_notes(plan: Plan) -> list[str]:
    """Return a note on each part that the run leaves out."""
    steps, share, notes = len(plan.steps), plan.settings.costly_share, []
    run = min(len(steps_on(candidate, plan.steps, share)) for candidate in plan.candidates)
    if run < steps:
        notes.append(
            f"{steps - run} of the {steps} trace steps in Triton's interpreter: a kernel takes "
            "tens of milliseconds there"
        )
    if share > 1 and any(is_costly(o, c) for o in plan.operations for c in plan.candidates):
        notes.append(
            f"{share - 1} in {share} of the drawn cases, and of the second calls on equal input, "
            "where a case is costly (in Triton's interpreter, and sequences in processes of their "
            "own) and of optimized without its checks: --thorough makes them all"
        )
    lanes = {candidate.lane for candidate in plan.candidates}
    if "cuda" not in lanes:
        notes.append(
            "compiled kernels on a GPU: this run called every candidate on CPU tensors only, and "
            "Triton kernels in the interpreter"
        )
    return notes
