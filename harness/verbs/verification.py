"""A verification without its messages: options become a plan, its outcomes the record of a run."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import msgspec

from attnproof.harness.backports import UTC
from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.case import EngineStep
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import FAULTS, Run, RunVerdict
from attnproof.harness.report.shared.comparison import read_run, with_base
from attnproof.harness.running import interrupt
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.engines import untried_notes
from attnproof.harness.running.errors import (
    INCOMPLETE,
    INFRASTRUCTURE,
    MISMATCH,
    SLOWER,
    VERIFIED,
    UsageError,
)
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.own_operations import notes_on_failures, use_operations
from attnproof.harness.running.parent.environment import gpu_name
from attnproof.harness.running.parent.plan import (
    Lacking,
    Plan,
    Probed,
    launch_lines,
    probe,
    unrun_notes,
    with_interpreted,
    without_kernels,
)
from attnproof.harness.running.parent.session import ProgressCallbacks, run
from attnproof.harness.running.recordings import read_recordings
from attnproof.harness.running.task.broad_deviations import broad_entries
from attnproof.harness.running.task.deviations import with_deviations
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import Outcome
from attnproof.harness.strength.files import read_strength
from attnproof.harness.verbs.base import check_base
from attnproof.harness.verbs.benchmark import Benchmark, check_files, prepare
from attnproof.harness.verbs.checks import check_run, check_timing
from attnproof.harness.verbs.ci import check_ci
from attnproof.harness.verbs.depth import depth_of
from attnproof.harness.verbs.options import TimingOptions, VerifyOptions
from attnproof.harness.verbs.output import Output
from attnproof.harness.verbs.progress import no_recording_progress
from attnproof.harness.verbs.run_record import coverage_notes, record_run
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
Observer = Callable[[int], AbstractContextManager[ProgressCallbacks]]
"""Function from the expected number of cases of a task to the callbacks of a run."""

RecordingObserver = Callable[[], AbstractContextManager[Callable[[str, int], None]]]
"""Function to the callback (file, its steps compared so far) of reading recordings."""


@dataclass(frozen=True)
class Verification:
    """A run that has ended, and its output folder, in which the report is not written yet."""

    run: Run
    candidates: list[Candidate]
    output: Output
    benchmark: Benchmark | None
    """Timing of the verified operations, None if nothing was to be timed."""
    unused: list[str]
    """A line on each part of the corpus that was not run."""
    broad: list[str]
    """A sentence on each entry of known deviations that would hide a new bug, and on each engine
    whose release was not tried."""


@interrupt.restored_handlers()
def run_verification(
    options: VerifyOptions,
    observer: Observer,
    observe_recorded: Callable[[Outcome], None],
    *,
    observe_reading: RecordingObserver = no_recording_progress,
    announce: Callable[[Candidate], None] = lambda _candidate: None,
    command: str = "attnproof verify",
    timing: TimingOptions | None = None,
    minimise_known: bool = True,
) -> Verification:
    """Run the cases and return the run; print nothing but the progress of timing.

    `observe_recorded` gets the outcome of each function of a recording before the run begins,
    `observe_reading` watches while they are compared; `announce` gets each candidate with its
    interface.
    `command` is the command line that the report names. Verified operations are timed if
    `timing` is given or `options.bench` is set. Cases of known deviations are shrunk unless
    `minimise_known` is False. The caller ends with `output.finish` or `output.discard`. Raise
    UsageError before anything runs.
    """
    timing = _checked(options, timing)
    base = read_run(options.base) if options.base else None
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    use_operations(options.definitions)
    candidates = pick_candidates(options)
    operations = pick_operations(options.ops)
    strength, unread = read_strength(options.strength)
    broad = broad_entries(options.deviations, operations)
    settings = _settings(options, seed, minimise_known=minimise_known)
    probed = probe(candidates, operations, settings)
    candidates, lacking = _lanes(probed, operations, options, only_timed=timing is not None)
    if timing is not None and not (options.bench or options.ops):
        operations = _offered(operations, candidates[: -timing.peers], lacking)
    for candidate in candidates:
        announce(candidate)
    depth = depth_of(options, operations, candidates, lacking, base)
    settings = msgspec.structs.replace(
        settings,
        examples=depth.examples,
        costly_share=depth.costly_share,
        usual_depth=depth.is_usual,
        sparse=depth.sparse,
    )
    corpus = pick_corpus(options.corpus)
    unused = unused_corpus(corpus, operations, candidates)
    benchmark = prepare(timing, operations, candidates) if timing else None
    if benchmark is not None:
        corpus += benchmark.cases
    if base is not None:
        check_base(base, operations, candidates, options, depth.examples)
    steps, held, notes = _steps(options, operations, depth.steps, seed, observe_reading)
    for outcome in held:
        observe_recorded(outcome)
    unused += unrun_notes(lacking)
    broad += untried_notes(candidates) + launch_lines(candidates)
    output = Output(options.out)
    jobs = options.jobs or min(_DEFAULT_JOBS, len(os.sched_getaffinity(0)))
    limit = options.maxfail or int(options.first)
    plan = Plan(operations, candidates, settings, steps, corpus, jobs, lacking, limit)
    started, clock = datetime.datetime.now(UTC), time.monotonic()
    with observer(settings.examples + len(steps)) as progress:
        outcomes, interrupted = run(plan, output.scratch, progress)
    peers = benchmark.peers if benchmark else ()
    record = record_run(plan, [*held, *outcomes], options, command, interrupted, peers)
    record.started = started.isoformat(timespec="seconds")
    record.seconds = round(time.monotonic() - clock, 1)
    record.strength = strength
    broad += notes_on_failures(record.operations)
    record.notes[:0] = [*broad, *notes, *unread, *unused, *coverage_notes(plan)]
    if benchmark is not None and not interrupted:
        benchmark.time(record, plan, output.scratch)
        record.seconds = round(time.monotonic() - clock, 1)
    finished = record.build()
    if base is not None:
        finished = with_base(finished, base, str(options.base))
    return Verification(finished, candidates, output, benchmark, unused, broad)


def _checked(options: VerifyOptions, timing: TimingOptions | None) -> TimingOptions | None:
    """Return the options of timing, None for a run without it. Raise UsageError."""
    check_run(options)
    check_ci(options.ci)
    if timing is None and options.bench:
        timing = TimingOptions(traces=options.traces, recorded=options.recorded)
    if timing is not None:
        check_timing(timing)
        check_files(timing)
    return timing


def _lanes(
    probed: Probed, operations: list[Operation], options: VerifyOptions, *, only_timed: bool
) -> tuple[list[Candidate], Lacking]:
    """Return the candidates, and reasons for what is not run, by what launches Triton."""
    if only_timed and not options.bench:
        return probed.candidates, without_kernels(probed, operations)
    candidates = with_interpreted(probed) if options.device == "auto" else probed.candidates
    return candidates, probed.lacking


def _offered(
    operations: list[Operation], candidates: list[Candidate], lacking: Lacking
) -> list[Operation]:
    """Return the operations that a candidate offers, all if there are none.

    Nothing of a peer is timed alone, so nothing of it is verified alone.
    """
    offered = [
        op for op in operations if any(op.name not in lacking.get(c.name, {}) for c in candidates)
    ]
    return offered or operations


def exit_code(run: Run) -> int:
    """Return the exit code of the verdict; a fault of the harness or the machine is none of it."""
    if run.verdict == "INCOMPLETE" and any(result.cause in FAULTS for result in run.operations):
        return INFRASTRUCTURE
    return _EXIT_CODES[run.verdict]


def pick_candidates(options: VerifyOptions) -> list[Candidate]:
    """Return the candidates with interface, deviations and contract. Raise UsageError."""
    if options.definitions and not (options.candidates or options.ops):
        raise UsageError(
            f"name your candidate with --candidate: --operations {options.definitions[0]} defines "
            f"operations of your own, which no built-in candidate has"
        )
    candidates = resolve(options.candidates, options.device, options.stub)
    if not options.candidates and options.depth != "thorough":
        candidates = [candidate for candidate in candidates if candidate.checked]
    if options.device == "auto" and not options.candidates and gpu_name() is not None:
        candidates.append(Candidate("optimized-cuda", OPTIMIZED, "cuda"))
    candidates = with_interface(candidates, options.interface)
    return with_contract(with_deviations(candidates, options.deviations), options)


def _settings(options: VerifyOptions, seed: int, *, minimise_known: bool) -> Settings:
    return Settings(
        seconds=options.seconds,
        seed=seed,
        timeout_s=options.timeout_s,
        memory_bytes=int(options.memory_gib * 2**30),
        examples_db=".attnproof/examples" if options.remember else "",
        minimise_known=minimise_known,
        vary=options.vary,
    )


def _steps(
    options: VerifyOptions,
    operations: list[Operation],
    wanted: int,
    seed: int,
    observe: RecordingObserver,
) -> tuple[list[EngineStep], list[Outcome], list[str]]:
    """Return `wanted` engine steps, the outcomes of recordings, and a note on each file."""
    steps, notes = pick_steps(options.traces, wanted, seed)
    if not options.recorded:
        return steps, [], notes
    with observe() as progressed:
        recorded, held, lines = read_recordings(
            options.recorded, wanted, seed, operations, progressed
        )
    return steps + recorded, held, notes + lines
