"""What is timed: the workloads of `attnproof bench`, each verified in a worker before."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest

from attnproof.harness.cases.steps.workloads import traced
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.deviation import Deviation
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import enter_lane, load, offered_by, resolve
from attnproof.harness.running.parent.session import not_run
from attnproof.harness.running.task.deviations import deviations_of, explain
from attnproof.harness.running.task.workers import Worker
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.timing.plan.timetable import TimedCase, timed_cases, why_never
from attnproof.harness.verbs.bench import OWN, default_peer
from attnproof.harness.verbs.benchmark import workloads
from attnproof.harness.verbs.options import TimingOptions

_TIMEOUT_S, _MEMORY_BYTES = 60.0, 4 << 30


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
            warnings.simplefilter("ignore")  # an engine's own
            return load(self.candidate)

    def function(self, timed: TimedCase) -> Any:
        """What it offers for the operation."""
        return offered_by(self._module, timed.operation)

    def verified(self, timed: TimedCase) -> tuple[str, ...]:
        """Ids of the known deviations that show; the test fails on anything else that is wrong."""
        failures = self.worker.judge(timed.case).failures
        explained = explain(self.deviations, timed.case, failures)
        if explained.unknown:
            wrong = explained.unknown[0]
            pytest.fail(f"not timed, as it is wrong: {wrong.diagnosis}: {wrong.message}")
        return tuple(dict.fromkeys(deviation.id for deviation, _ in explained.known))


@dataclass
class Field:
    """Everybody who takes part, and what each took so far."""

    contestants: dict[str, Contestant]
    medians: dict[tuple[str, str], float] = field(default_factory=dict)
    """By group and candidate, in seconds."""

    @property
    def peer(self) -> str:
        """The last one named, which is timed first."""
        return list(self.contestants)[-1]


def _entered(names: list[str]) -> Field:
    warm_up()
    contestants = {}
    for candidate in resolve(names or [OWN, default_peer()], "auto"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            worker = Worker(candidate, ALL, timeout_s=_TIMEOUT_S, memory_bytes=_MEMORY_BYTES)
        contestants[candidate.name] = Contestant(candidate, worker, deviations_of(candidate))
    return Field(contestants)


_field = pytest.StashKey[Field]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_field] = _entered(config.getoption("timed_candidates"))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _field in config.stash:
        for contestant in config.stash[_field].contestants.values():
            contestant.worker.stop()


@pytest.fixture(scope="session")
def entrants(request: pytest.FixtureRequest) -> Field:
    return request.config.stash[_field]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "timed" in metafunc.fixturenames:
        parameters = list(_parameters(metafunc.config.stash[_field]))
        metafunc.parametrize(("timed", "name"), parameters)


def _parameters(entrants: Field) -> Iterator[Any]:
    operations = [operation for operation in ALL.values() if not why_never(operation)]
    trace = traced(None, TimingOptions.steps, TimingOptions.seed)
    for timed in timed_cases(operations, workloads([trace], TimingOptions.seed)):
        for name, contestant in reversed(entrants.contestants.items()):
            offers = timed.operation.name in contestant.worker.offers
            if offers and not not_run(timed.operation, contestant.candidate)[0]:
                label = f"{timed.operation.name}-{timed.workload.name}-{name}"
                yield pytest.param(timed, name, id=label)
