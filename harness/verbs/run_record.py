"""The record of a run: its verdict, reasons and notes, and the command that replays a finding."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnproof.harness.escaping import shell_command, shell_path
from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate, device_type
from attnproof.harness.model.run import EXPECTED, Cause, Finding, OperationResult, RunVerdict
from attnproof.harness.model.verdict import ENGINE, STRICT
from attnproof.harness.running.candidates import BUILT_IN, name_of
from attnproof.harness.running.own_operations import own_names, sources_in_use
from attnproof.harness.running.parent.environment import describe
from attnproof.harness.running.parent.plan import Plan, steps_on
from attnproof.harness.running.parent.run_builder import RunBuilder
from attnproof.harness.running.task.settings import is_costly
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.verbs.depth import depth_words
from attnproof.harness.verbs.options import VerifyOptions


def record_run(
    plan: Plan,
    outcomes: list[Outcome],
    options: VerifyOptions,
    command: str,
    interrupted: bool,
    peers: Sequence[str],
) -> RunBuilder:
    """Return the record of the outcomes, without times.

    `peers` are the candidates that others are compared with.
    """
    results = [outcome.result for outcome in outcomes]
    if options.ops:
        results = [r if r.candidate in peers else _unverified_if_absent(r) for r in results]
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
            "depth": depth_words(options),
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
            "interfaces": {c.name: c.interface for c in plan.candidates if c.interface},
            "reasons for interfaces": {
                c.name: c.interface_reason for c in plan.candidates if c.interface
            },
            "stub": options.stub,
            "interrupted": interrupted,
        },
        operations=results,
        findings=[_with_command(finding, plan.candidates, options) for finding in findings],
        advice=[_with_command(finding, plan.candidates, options) for finding in advice],
        notes=[*_stale_notes(plan), *(note for outcome in outcomes for note in outcome.notes)],
        deviations=[
            msgspec.structs.replace(
                deviation,
                shown=deviation.shown and _with_command(deviation.shown, plan.candidates, options),
            )
            for deviation in deviations
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
    # With --device auto, replay finds the lane itself.
    by_itself = candidate.lane == "cpu" and options.device == "auto"
    plain = by_itself or candidate in BUILT_IN
    by_option = candidate.deviations == tuple(dict.fromkeys(options.deviations))
    words = ["attnproof", "replay", shell_path(options.out / finding.case_path)]
    words += ["--candidate", shell_path(name_of(candidate))]
    if finding.operation in own_names():
        words += [
            word for source in sources_in_use() for word in ("--operations", shell_path(source))
        ]
    words += [] if plain else ["--device", candidate.lane]
    usual = ENGINE if candidate.target not in (OPTIMIZED, REFERENCE) else STRICT
    words += [] if finding.kind in usual else ["--contract", "strict"]
    for name in candidate.deviations if by_option else ():
        words += ["--deviations", shell_path(name)]
    words += ["--interface", options.interface] if options.interface else []
    words += ["--stub", options.stub] if options.stub and candidate.stub else []
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


def coverage_notes(plan: Plan) -> list[str]:
    """Return a note on each part that the run leaves out."""
    steps, share, notes = len(plan.steps), plan.settings.costly_share, []
    pairs = [(o, c.judging(o.name)) for o in plan.operations for c in plan.candidates]
    run = min(len(steps_on(candidate, plan.steps, share)) for _, candidate in pairs)
    if run < steps:
        notes.append(
            f"{steps - run} of the {steps} trace steps in Triton's interpreter: a kernel takes "
            "tens of milliseconds there"
        )
    if share > 1 and any(is_costly(*pair) for pair in pairs):
        notes.append(
            f"{share - 1} in {share} of the drawn cases, and of the second calls on equal input, "
            "where a case is costly (in Triton's interpreter, and sequences in processes of their "
            "own) and of optimized without its checks: --depth thorough makes them all"
        )
    lanes = {candidate.lane for candidate in plan.candidates}
    if "cuda" not in map(device_type, lanes):
        notes.append(
            "compiled kernels on a GPU: this run called every candidate on CPU tensors only, and "
            "Triton kernels in the interpreter"
        )
    return notes
