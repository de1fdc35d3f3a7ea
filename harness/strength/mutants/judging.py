"""Judge a mutant by cases until the first failure."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.verdict import Failure, Verdict
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import faults_for
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.further_calls import failures_of_further_calls
from attnproof.harness.running.task.fuzz import BATCH, strategy
from attnproof.harness.running.task.more_cases import more_cases
from attnproof.harness.running.task.workers import InvalidCaseError, Worker
from attnproof.harness.strength.mutants import planting
from attnproof.harness.strength.mutants.mutant import Mutant, Result

_TARGET = f"{planting.__name__}:backend"
_TIMEOUT_S = 5.0
"""Time limit of a case, in seconds: a mutant that needs longer has timed out."""
_MEMORY_BYTES = 4 << 30
_REPEATED_SHARE = 10
"""One case in this many is called twice on equal input."""
_LONGEST_SEQUENCE = 25
_FURTHER = 20
"""Maximum number of cases that are followed by calls on other input."""


def draw(operation: Operation, candidate: Candidate, examples: int, run_seed: int) -> list[Case]:
    """Return the cases of a run of `verify`, without calling a candidate.

    Edge cases come first, then those of critical sizes, then `examples` drawn ones.
    """
    faults = faults_for(operation, candidate)
    boundaries = [case for _, case in operation.inputs.boundaries()]
    drawn: list[Case] = []
    for first in range(0, examples, BATCH):
        batch_seed = zlib.crc32(f"{run_seed}/{first}".encode())
        drawn += _drawn(operation, faults, min(BATCH, examples - first), batch_seed)
    good = [case for case in drawn if not case.fault]
    more = more_cases(operation, good, examples, run_seed, [], lambda: ())
    cases = [*boundaries, *(sourced.case for sourced in more), *drawn]
    return list({case.id: case for case in cases if not case.fault or faults}.values())


def _drawn(
    operation: Operation, faults: Mapping[str, Fault], examples: int, run_seed: int
) -> list[Case]:
    drawn: list[Case] = []

    def keep(case: Case) -> None:
        drawn.append(case)

    how = settings(
        max_examples=examples,
        stateful_step_count=_LONGEST_SEQUENCE,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    machine = operation.inputs.machine
    run: Callable[[], Any]
    if machine is None:
        run = seed(run_seed)(how(given(strategy(operation, faults))(keep)))
    else:
        bound = type(machine.__name__, (machine,), {"judge": staticmethod(keep)})
        run = partial(run_state_machine_as_test, seed(run_seed)(bound), settings=how)
    with suppress(Unsatisfiable):
        run()
    return drawn


def record(
    operation: str, module: Any, candidate: Candidate, cases: list[Case], seen: Path
) -> list[str]:
    """Judge the cases without a mutant; return the ids of those that the candidate fails.

    The candidate's functions that are called are recorded in the file `seen`.
    """
    planting.record_calls(planting.root_of(module), seen)
    failed: list[str] = []
    worker = _worker(operation, module, candidate)
    try:
        for case in cases:
            try:
                verdict = worker.judge(case, repeated=False)
            except InvalidCaseError:  # `verify` leaves it out too
                failed.append(case.id)
                continue
            if any(one.kind in candidate.judged for one in verdict.failures):
                failed.append(case.id)
    finally:
        worker.stop()
    return failed


def judge(
    mutant: Mutant,
    operation: str,
    module: Any,
    candidate: Candidate,
    cases: list[Case],
    deep: list[Case],
) -> Result:
    """Plant the mutant in this process and judge the cases until one fails.

    A mutant that survives them stays a survivor; its reason says what the cases `deep` show.
    """
    started = time.monotonic()
    made = partial(Result, mutant, operation)
    try:
        planting.plant(mutant)
    except planting.NotPlantedError as error:
        return made("not planted", reason=str(error))
    count = 0
    try:
        worker = _worker(operation, module, candidate)
    except InfrastructureError as error:
        return made("killed", oracle="process", reason=str(error))
    try:
        for count, case in enumerate([*cases, *deep], 1):
            verdict: Verdict = worker.judge(case, repeated=count % _REPEATED_SHARE == 1)
            failures = [one for one in verdict.failures if one.kind in candidate.judged]
            if failures and count > len(cases):
                return made(
                    "survived",
                    cases=len(cases),
                    seconds=round(time.monotonic() - started, 2),
                    reason=f"{failures[0].oracle} finds it in further case {count - len(cases)}",
                )
            if failures:
                hangs = failures[0].oracle == "process" and "hang" in failures[0].diagnosis
                return made(
                    "timed out" if hangs else "killed",
                    oracle=failures[0].oracle,
                    cases=count,
                    seconds=round(time.monotonic() - started, 2),
                )
        failures = _failures_of_further_calls(worker, cases)
        if failures:
            return made(
                "killed",
                oracle=failures[0].oracle,
                cases=len(cases),
                seconds=round(time.monotonic() - started, 2),
            )
    except InfrastructureError as error:  # the reference itself fails, or the case is not laid out
        seconds = round(time.monotonic() - started, 2)
        return made("killed", oracle="harness", cases=count, seconds=seconds, reason=str(error))
    finally:
        worker.stop()
    return made(
        "survived",
        cases=len(cases),
        seconds=round(time.monotonic() - started, 2),
        reason=f"no finding in {len(deep)} further cases" if deep else "",
    )


def _failures_of_further_calls(worker: Worker, cases: list[Case]) -> list[Failure]:
    """Return the failures of calls on other input after some of the cases, up to the first."""
    good = [case for case in cases if not case.fault]
    wrong: list[Case] = []
    for case in good[:: len(good) // _FURTHER + 1]:
        found = failures_of_further_calls(worker, case, wrong)
        found = found or tuple(one for case in wrong for one in worker.judge(case).failures)
        failures = [one for one in found if one.kind in worker.candidate.judged]
        if failures:
            return failures
    return []


def _worker(operation: str, module: Any, candidate: Candidate) -> Worker:
    planting.backend = module
    planted = Candidate(
        candidate.name,
        _TARGET,
        lane=candidate.lane,
        interface=candidate.interface,
        judged=candidate.judged,
    )
    return Worker(
        planted, {operation: ALL[operation]}, timeout_s=_TIMEOUT_S, memory_bytes=_MEMORY_BYTES
    )
