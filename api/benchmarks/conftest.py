"""The timed cases: the workloads of `attnproof bench`, each verified in a worker first."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest

from attnproof.api.pytest_plugin import timed_candidates
from attnproof.harness.cases.steps.workloads import trace_steps
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.operations import ALL
from attnproof.harness.running.loading import enter_lane, load_to_time, offered_by
from attnproof.harness.running.parent.plan import find_skip
from attnproof.harness.running.task.deviations import deviations_of, explain
from attnproof.harness.running.task.workers import Worker
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.timing.plan.timetable import TimedCase, timed_cases, why_never
from attnproof.harness.verbs.benchmark import workloads
from attnproof.harness.verbs.options import MEMORY_BYTES, TimingOptions

_TIMEOUT_S = 60.0


@dataclass
class Contestant:
    """One candidate: a worker that judges it, and its functions in this process."""

    candidate: Candidate
    worker: Worker
    deviations: tuple[Deviation, ...]

    @cached_property
    def _module(self) -> Any:
        enter_lane(self.candidate)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an engine warns when it is imported
            return load_to_time(self.candidate)

    def function(self, timed: TimedCase) -> Any:
        """Return the candidate's function or class for the operation."""
        return offered_by(self._module, timed.operation)

    def verified(self, timed: TimedCase) -> tuple[str, ...]:
        """Return the ids of known deviations on the case; fail the test for any other failure."""
        failures = self.worker.judge(timed.case).failures
        explained = explain(self.deviations, timed.case, failures)
        if explained.unknown:
            wrong = explained.unknown[0]
            pytest.fail(f"not timed, as it is wrong: {wrong.diagnosis}: {wrong.message}")
        return tuple(dict.fromkeys(deviation.id for deviation, _ in explained.known))


@dataclass
class Field:
    """The candidates, and their median times so far."""

    contestants: dict[str, Contestant]
    medians: dict[tuple[str, str], float] = field(default_factory=dict)
    """Median in seconds, by group and candidate."""

    @property
    def peer(self) -> str:
        """Name of the last candidate, which is timed first."""
        return list(self.contestants)[-1]


def _entered(candidates: list[Candidate]) -> Field:
    warm_up(candidates)
    contestants = {}
    for candidate in candidates:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worker = Worker(candidate, ALL, timeout_s=_TIMEOUT_S, memory_bytes=MEMORY_BYTES)
        contestants[candidate.name] = Contestant(candidate, worker, deviations_of(candidate))
    return Field(contestants)


_field = pytest.StashKey[Field]()


def pytest_configure(config: pytest.Config) -> None:
    """Start a worker for each candidate."""
    config.stash[_field] = _entered(timed_candidates(config))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the workers."""
    if _field in config.stash:
        for contestant in config.stash[_field].contestants.values():
            contestant.worker.stop()


@pytest.fixture(scope="session")
def entrants(request: pytest.FixtureRequest) -> Field:
    """Return the candidates and their median times so far."""
    return request.config.stash[_field]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each workload and candidate that offers its operation."""
    if "timed" in metafunc.fixturenames:
        parameters = list(_parameters(metafunc.config.stash[_field]))
        metafunc.parametrize(("timed", "name"), parameters)


def _parameters(entrants: Field) -> Iterator[Any]:
    operations = [operation for operation in ALL.values() if not why_never(operation)]
    trace = trace_steps(None, TimingOptions.steps, TimingOptions.seed)
    for timed in timed_cases(operations, workloads([trace], TimingOptions.seed)):
        for name, contestant in reversed(entrants.contestants.items()):
            offers = timed.operation.name in contestant.worker.offers
            if offers and find_skip(timed.operation, contestant.candidate) is None:
                label = f"{timed.operation.name}-{timed.workload.name}-{name}"
                yield pytest.param(timed, name, id=label)
