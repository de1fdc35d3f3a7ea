"""Timing as part of a run: what is verified on the way is timed at its end (`bench`, `--bench`)."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnproof.harness.cases.steps.workloads import (
    TimedBatch,
    TraceSteps,
    synthetic_batches,
    trace_steps,
)
from attnproof.harness.cases.traces.formats import TraceError
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Environment, Run
from attnproof.harness.report.formats.bench_markdown import bench_markdown
from attnproof.harness.report.shared.ratios import worse
from attnproof.harness.report.shared.wording import many
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import version_of
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.running.parent.session import Plan
from attnproof.harness.timing.analysis.baseline import path_of, save
from attnproof.harness.timing.analysis.history import read as read_history
from attnproof.harness.timing.analysis.regressions import against, confirm, slower
from attnproof.harness.timing.measuring import Outcome, TimingPlan, time_all
from attnproof.harness.timing.plan.standing import Standing, read_ledgers
from attnproof.harness.timing.plan.timetable import TimedCase, TimedStep, timed_cases, timed_steps
from attnproof.harness.timing.process.clocks import host_clock
from attnproof.harness.verbs.progress import say, timing_shown

_TIMED_AGAIN = 2
"""How often what looks slower is timed again."""
_STEPS_AS_WORKLOADS = 3
"""Steps of each trace on which every operation is timed by itself."""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What the command line says of timing, unresolved."""

    seconds: float = 90.0
    seed: int = 0
    """Of the workloads: the same for every run, as a baseline needs."""
    traces: list[Path] = field(default_factory=list)
    steps: int = 24
    save_baseline: str = ""
    baseline: str = ""
    baselines: Path = Path("reports/baselines")
    markdown: Path | None = None
    """Where the tables go as Markdown, None for nowhere."""


@dataclass(frozen=True)
class Timekeeper:
    """Knows what a run will time, before it verifies it, and times it afterwards."""

    options: BenchOptions
    operations: list[Operation]
    candidates: list[Candidate]
    """Those of one lane."""
    peer: str
    """The last of them, with which the others are compared; "" if there is one alone."""
    cases: list[TimedCase]
    steps: list[TimedStep]

    @property
    def sourced(self) -> list[Sourced]:
        """Everything that will be timed, to be verified first."""
        timed = [*self.cases, *(case for step in self.steps for case in step.cases)]
        return list({one.case.id: one.sourced for one in timed}.values())

    def keep_time(self, run: Run, plan: Plan, ledgers: Path) -> None:
        """Time what `run` has verified, and let its verdict say how that went."""
        standings = {c.name: _standing(c, run, plan, ledgers) for c in self.candidates}
        interrupt.watch()
        outcome = self._timed(standings, run.environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        run.bench, problems = outcome.bench, outcome.problems
        run.settings |= self._settings(outcome.interrupted)
        problems += [f"{name} was not timed" for name in self._forgotten(run)]
        run.notes += [
            f"the speed of {candidate.name}: its lane is {candidate.lane}"
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

    def _timed(self, standings: dict[str, Standing], environment: Environment) -> Outcome:
        """Everything timed, held against a baseline if that was asked for.

        What looks slower is timed again by processes of their own, as a machine of several
        users is slower now and then, and memory lies elsewhere in each process.
        """
        plan = TimingPlan(
            operations=self.operations,
            candidates=self.candidates,
            peer=self.peer,
            cases=self.cases,
            steps=self.steps,
            seconds=self.options.seconds,
        )
        with timing_shown() as told:
            outcome = time_all(plan, standings, told)
            if not self.options.baseline:
                return outcome
            path = path_of(self.options.baseline, self.options.baselines)
            asked = {operation.name for operation in self.operations}
            bench = outcome.bench
            bench.baseline = against(path, bench, environment, asked)
            for _ in range(_TIMED_AGAIN):
                suspects = {(r.operation, r.workload) for r in slower(bench.baseline)}
                if outcome.interrupted or not suspects:
                    break
                say(f"timing again what looks slower: {many(len(suspects), 'workload')}")
                again = time_all(plan.only(suspects), standings, told)
                again.bench.baseline = against(path, again.bench, environment, asked)
                confirm(bench, again.bench)
                outcome.interrupted = again.interrupted
                outcome.problems += [p for p in again.problems if p not in outcome.problems]
                bench.seconds = round(bench.seconds + again.bench.seconds, 1)
        return outcome

    def _settings(self, interrupted: bool) -> dict[str, object]:
        peer = next((c for c in self.candidates if c.name == self.peer), None)
        return {
            "timing budget (s)": self.options.seconds,
            "seed of the workloads": self.options.seed,
            "compared with": " ".join([self.peer, *([version_of(peer)] if peer else [])]).strip(),
            "interrupted": interrupted,
        }

    def _forgotten(self, run: Run) -> list[str]:
        """Operations that have neither a time nor a reason."""
        assert run.bench is not None
        known = {timing.operation for timing in run.bench.timings}
        known |= {untimed.operation for untimed in run.bench.untimed}
        return [operation.name for operation in self.operations if operation.name not in known]

    def _compare(self, run: Run, problems: list[str]) -> None:
        """What the baseline says, if one was asked for."""
        bench, options = run.bench, self.options
        assert bench is not None
        bench.history = read_history(options.baselines, bench, run.environment)
        if not options.baseline:
            return
        found = bench.baseline
        if found.state != "compared":
            problems.append(found.reason)
        elif not found.regressions:
            problems.append(f"baseline {found.name} and this run have no timing in common")
        problems += [f"{label} is in the baseline and was not timed" for label in found.lost]
        found_worse = worse(bench)
        if found_worse and run.verdict != "FAIL":
            first = found_worse[0]
            what = first.costs or f"{(first.ratio - 1) * 100:.0f} % slower"
            place = f"{first.operation} of {first.candidate} on {first.workload}"
            more = f", and {len(found_worse) - 1} more" if len(found_worse) > 1 else ""
            run.reason = "; ".join(filter(None, [f"{place}: {what}{more}", run.reason]))
            run.verdict = "SLOWER"

    def _why_not_saved(self, run: Run) -> str:
        """Why the run cannot become a baseline, "" if it can."""
        reasons = {
            "something is wrong": run.verdict == "FAIL",
            f"it is slower than {self.options.baseline}; to accept that, save without --baseline": (
                run.verdict == "SLOWER"
            ),
            "the run was interrupted": bool(run.settings["interrupted"]),
            "nothing was timed": not (run.bench and run.bench.timings),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def write(self, run: Run) -> None:
        """The baseline and the tables, as far as either was asked for (InfrastructureError)."""
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
    options: BenchOptions, operations: list[Operation], candidates: list[Candidate]
) -> Timekeeper:
    """What will be timed (UsageError, InfrastructureError)."""
    host_clock()
    folder = options.markdown.parent if options.markdown else Path()
    if not folder.is_dir():
        raise UsageError(f"--markdown {options.markdown}: there is no folder {folder}")
    if options.markdown and options.markdown.is_dir():
        raise UsageError(f"--markdown {options.markdown}: it is a folder, name a file")
    for name in filter(None, (options.baseline, options.save_baseline)):
        path_of(name, options.baselines)
    with_speed = [candidate for candidate in candidates if candidate.lane != "interpreter"]
    if not with_speed:
        raise UsageError("the interpreter has no speed: use --device cpu or cuda to time something")
    same = [candidate for candidate in with_speed if candidate.lane == with_speed[0].lane]
    peer = same[-1].name if len(same) > 1 else ""
    traces = _traces(options)
    steps = [step for trace in traces for step in timed_steps(operations, trace)]
    batches = workloads(traces, options.seed)
    cases = timed_cases(operations, batches, real_sizes=same[0].lane == "cuda")
    return Timekeeper(options, operations, same, peer, cases, steps)


def workloads(traces: Sequence[TraceSteps], seed: int) -> list[TimedBatch]:
    """What every operation is timed on: drawn batches and a few steps of each trace."""
    batches = list(synthetic_batches(seed))
    for trace in traces:
        apart = max(1, len(trace.steps) // _STEPS_AS_WORKLOADS)
        batches += trace.steps[::apart][:_STEPS_AS_WORKLOADS]
    return batches


def _traces(options: BenchOptions) -> list[TraceSteps]:
    if not options.steps:
        return []
    paths: list[Path | None] = [*options.traces] or [None]
    try:
        return [trace_steps(path, options.steps, options.seed) for path in paths]
    except TraceError as error:
        raise UsageError(str(error)) from None


def _standing(candidate: Candidate, run: Run, plan: Plan, ledgers: Path) -> Standing:
    mine: Sequence[Path] = sorted(
        ledgers.glob(f"ledger-{plan.candidates.index(candidate):03}-*.jsonl")
    )
    results = {r.name: r for r in run.operations if r.candidate == candidate.name}
    return Standing(candidate.lane, results, read_ledgers(mine))
