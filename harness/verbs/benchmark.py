"""The benchmark of a run: its workloads are verified with the run, and timed at its end."""

from __future__ import annotations

import os
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attnproof.harness.cases.recorded.reading import recording_files
from attnproof.harness.cases.recorded.steps import RecordingError
from attnproof.harness.cases.recorded.timed import recorded_batches
from attnproof.harness.cases.steps.workloads import (
    TimedBatch,
    TraceSteps,
    synthetic_batches,
    trace_steps,
)
from attnproof.harness.cases.traces.formats import TraceError
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Sourced
from attnproof.harness.model.files import is_of_another
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Environment, Run
from attnproof.harness.model.text import near_hint
from attnproof.harness.model.timing import Bench
from attnproof.harness.report.formats.bench_markdown import TABLE_MARK, bench_markdown
from attnproof.harness.report.shared.baseline import place_text, uncompared_reason, worse
from attnproof.harness.report.shared.wording import many
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.running.parent.plan import Plan
from attnproof.harness.running.parent.run_builder import RunBuilder
from attnproof.harness.timing.analysis.baseline import MARK, BaselineError, load, path_of, save
from attnproof.harness.timing.analysis.history import read as read_history
from attnproof.harness.timing.analysis.regressions import against, confirm, slower
from attnproof.harness.timing.analysis.wrong_results import without_times
from attnproof.harness.timing.measuring import Outcome, TimingPlan, time_all
from attnproof.harness.timing.plan.timetable import (
    SERVED,
    TimedCase,
    TimedStep,
    timed_cases,
    timed_steps,
)
from attnproof.harness.timing.plan.verdicts import CandidateVerdicts, read_ledgers
from attnproof.harness.timing.process.clocks import host_clock
from attnproof.harness.verbs.messages import say
from attnproof.harness.verbs.options import TimingOptions
from attnproof.harness.verbs.progress import timing_progress

_REPEATS = 2
"""Times that a workload is timed again if it looks slower than the baseline."""
_STEPS_AS_WORKLOADS = 3
"""Steps of each trace on which every operation is timed alone."""


@dataclass(frozen=True)
class Benchmark:
    """The cases that a run times: chosen before verification, timed after it."""

    options: TimingOptions
    operations: list[Operation]
    candidates: list[Candidate]
    """The timed candidates, all of one lane."""
    peers: tuple[str, ...]
    """The last candidates, with which the others are compared; () for a single candidate."""
    timed: list[TimedCase]
    steps: list[TimedStep]

    @property
    def cases(self) -> list[Sourced]:
        """Every case that will be timed and that the run verifies, once."""
        verified = [case for case in self.timed if case.workload.kind != SERVED]
        timed = [*verified, *(case for step in self.steps for case in step.cases)]
        return list({entry.case.id: entry.sourced for entry in timed}.values())

    def time(self, run: RunBuilder, plan: Plan, ledgers: Path) -> None:
        """Time the verified cases; set the run's benchmark, settings, notes and verdict.

        `ledgers` is the folder of the ledgers, which hold the verdict on each case.
        """
        verdicts = {c.name: _verdicts(c, run, plan, ledgers) for c in self.candidates}
        outcome = self._measure(verdicts, run.environment)
        run.bench, problems = outcome.bench, outcome.problems
        run.fail({(w.operation, w.candidate): w.reason for w in outcome.wrong})
        run.settings |= self._settings(outcome.interrupted)
        problems += [f"{name} was not timed" for name in self._missing(run)]
        run.notes += [
            f"the speed of {candidate.name}: only one lane is timed, and its lane is "
            f"{candidate.lane}"
            for candidate in plan.candidates
            if candidate not in self.candidates
        ]
        self._compare(run, problems)
        if self.options.save_baseline and (reason := self._why_not_saved(run)):
            problems.append(f"baseline {self.options.save_baseline} was not saved: {reason}")
        if outcome.interrupted:
            problems.insert(0, "interrupted while timing")
        if problems and run.verdict != "FAIL":
            more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
            run.reason = "; ".join(filter(None, [run.reason, problems[0] + more]))
            if run.verdict == "PASS":
                run.verdict = "INCOMPLETE"

    def _measure(self, verdicts: dict[str, CandidateVerdicts], environment: Environment) -> Outcome:
        """Time all cases, and compare them with a baseline if there is one.

        A workload that looks slower is timed again in new processes: a machine with several
        users has slow moments, and each process gets other memory addresses.
        """
        plan = TimingPlan(
            operations=self.operations,
            candidates=self.candidates,
            peers=self.peers,
            cases=self.timed,
            steps=self.steps,
            seconds=self.options.seconds,
        )
        with timing_progress() as show:
            outcome = time_all(plan, verdicts, show)
            if not self.options.baseline:
                return outcome
            path = path_of(self.options.baseline, self.options.baselines)
            operations = {operation.name for operation in self.operations}
            outcome.bench = _with_baseline(outcome.bench, path, environment, operations)
            for _ in range(_REPEATS):
                suspects = {(r.operation, r.workload) for r in slower(outcome.bench.baseline)}
                if outcome.interrupted or not suspects:
                    break
                say(f"timing again what looks slower: {many(len(suspects), 'workload')}")
                again = time_all(plan.only(suspects), verdicts, show)
                again.bench = _with_baseline(again.bench, path, environment, operations)
                outcome.interrupted = again.interrupted
                outcome.problems += [p for p in again.problems if p not in outcome.problems]
                outcome.wrong += again.wrong
                outcome.bench = msgspec.structs.replace(
                    without_times(confirm(outcome.bench, again.bench), again.wrong),
                    seconds=round(outcome.bench.seconds + again.bench.seconds, 1),
                )
        return outcome

    def _settings(self, interrupted: bool) -> dict[str, object]:
        peers = [c for c in self.candidates if c.name in self.peers]
        return {
            "timing budget (s)": self.options.seconds,
            "seed of the workloads": self.options.seed,
            "compared with": ", ".join(f"{c.name} {version_of(c)}".strip() for c in peers),
            "interrupted": interrupted,
        }

    def _missing(self, run: RunBuilder) -> list[str]:
        """Return the operations without a time and without a reason for that."""
        assert run.bench is not None
        known = {timing.operation for timing in run.bench.timings}
        known |= {untimed.operation for untimed in run.bench.untimed}
        return [operation.name for operation in self.operations if operation.name not in known]

    def _compare(self, run: RunBuilder, problems: list[str]) -> None:
        """Add the history and the result of the comparison with a baseline to the run."""
        options = self.options
        assert run.bench is not None
        history = read_history(options.baselines, run.bench, run.environment)
        bench = run.bench = msgspec.structs.replace(run.bench, history=history)
        if not options.baseline:
            return
        baseline = bench.baseline
        if reason := uncompared_reason(baseline):
            problems.append(reason)
        problems += [f"{label} is in the baseline and was not timed" for label in baseline.lost]
        found_worse = worse(bench)
        if found_worse and run.verdict != "FAIL":
            first = found_worse[0]
            what = first.costs or f"{(first.ratio - 1) * 100:.0f} % slower"
            more = f", and {len(found_worse) - 1} more" if len(found_worse) > 1 else ""
            run.reason = "; ".join(filter(None, [f"{place_text(first)}: {what}{more}", run.reason]))
            run.verdict = "SLOWER"

    def _why_not_saved(self, run: Run | RunBuilder) -> str:
        """Return the reason why the run cannot become a baseline, "" if it can."""
        reasons = {
            "an operation failed": run.verdict == "FAIL",
            f"it is slower than {self.options.baseline}; to accept that, save without --baseline": (
                run.verdict == "SLOWER"
            ),
            "the run was interrupted": bool(run.settings["interrupted"]),
            "nothing was timed": not (run.bench and run.bench.timings),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def write(self, run: Run) -> None:
        """Write the baseline and the Markdown tables, if given. Raise InfrastructureError."""
        name, table = self.options.save_baseline, self.options.markdown
        if name and (reason := self._why_not_saved(run)):
            say(f"baseline {name} was not saved: {reason}")
        elif name:
            assert run.bench is not None
            path = path_of(name, self.options.baselines)
            save(path, run.bench, run.environment)
            say(f"baseline saved: {path}")
        if table is not None:
            try:
                table.write_text(bench_markdown(run), encoding="utf-8")
            except OSError as error:
                reason = f"cannot be written: {error.strerror}"
                raise InfrastructureError(f"--markdown {table} {reason}") from None


def prepare(
    options: TimingOptions, operations: list[Operation], candidates: list[Candidate]
) -> Benchmark:
    """Choose the workloads. Raise UsageError for bad options, InfrastructureError for the clock."""
    host_clock()
    with_speed = [candidate for candidate in candidates if candidate.lane in ("cpu", "cuda")]
    if not with_speed:
        raise UsageError(
            "only the lanes cpu and cuda are timed: use --device cpu or cuda to time candidates"
        )
    same = [candidate for candidate in with_speed if candidate.lane == with_speed[0].lane]
    own = max(1, len(same) - options.peers)
    peers = tuple(candidate.name for candidate in same[own:])
    traces = _traces(options)
    steps = [step for trace in traces for step in timed_steps(operations, trace)]
    batches = workloads(traces, options.seed)
    cases = timed_cases(operations, batches, real_sizes=same[0].lane == "cuda")
    return Benchmark(options, operations, same, peers, cases, steps)


def check_files(options: TimingOptions) -> None:
    """Check the files that are read and written after hours of timing (UsageError)."""
    folder = options.markdown.parent if options.markdown else Path()
    if not os.path.isdir(folder):  # noqa: PTH112 (`is_dir` raises for a name that is too long)
        raise UsageError(f"--markdown {options.markdown}: there is no folder {folder}")
    if options.markdown and os.path.isdir(options.markdown):  # noqa: PTH112
        raise UsageError(f"--markdown {options.markdown}: it is a folder, name a file")
    for name in filter(None, (options.baseline, options.save_baseline)):
        path_of(name, options.baselines)
    _refuse_to_replace(options)
    if options.baseline:
        try:
            load(path_of(options.baseline, options.baselines))
        except BaselineError as error:
            saved = [path.stem for path in options.baselines.glob("*.json")]
            hint = near_hint(options.baseline, saved) if error.state == "missing" else ""
            raise UsageError(f"--baseline {options.baseline}: {hint}{error}") from None


def _refuse_to_replace(options: TimingOptions) -> None:
    """Check that the files to be written are none of someone else's (UsageError)."""
    table, name = options.markdown, options.save_baseline
    if table and is_of_another(table, TABLE_MARK):
        raise UsageError(f"--markdown {table}: no benchmark wrote it; name another file")
    if name and is_of_another(path := path_of(name, options.baselines), MARK):
        raise UsageError(f"--save-baseline {name}: {path} is no baseline; name another one")


def workloads(traces: Sequence[TraceSteps], seed: int) -> list[TimedBatch]:
    """Return the batches on which every operation is timed: drawn ones and a few trace steps."""
    batches = list(synthetic_batches(seed))
    for trace in traces:
        stride = max(1, len(trace.steps) // _STEPS_AS_WORKLOADS)
        batches += trace.steps[::stride][:_STEPS_AS_WORKLOADS]
    return batches


def _traces(options: TimingOptions) -> list[TraceSteps]:
    """Return the engine steps of each trace and recording (UsageError)."""
    if not options.steps:
        return []
    try:
        recorded = [file for path in options.recorded for file in recording_files(path)]
        timed = [recorded_batches(path, options.steps) for path in recorded]
    except RecordingError as error:
        raise UsageError(f"--recorded {error}") from None
    # A recording says what is run: sampled requests are timed without one only.
    paths: list[Path | None] = [*options.traces] or [None] * (not timed)
    try:
        return [trace_steps(path, options.steps, options.seed) for path in paths] + timed
    except TraceError as error:
        raise UsageError(str(error)) from None


def _with_baseline(
    bench: Bench, path: Path, environment: Environment, operations: Container[str]
) -> Bench:
    """Return the benchmark with its comparison with the baseline in a file."""
    baseline = against(path, bench, environment, operations)
    return msgspec.structs.replace(bench, baseline=baseline)


def _verdicts(
    candidate: Candidate, run: RunBuilder, plan: Plan, ledgers: Path
) -> CandidateVerdicts:
    """Return the verdicts on the candidate's operations and cases."""
    mine: Sequence[Path] = sorted(
        ledgers.glob(f"ledger-{plan.candidates.index(candidate):03}-*.jsonl")
    )
    results = {r.name: r for r in run.operations if r.candidate == candidate.name}
    return CandidateVerdicts(candidate.lane, results, read_ledgers(mine))
