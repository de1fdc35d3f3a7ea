"""Verify both sides of each pair as a default run does: recall on real bugs, false alarms."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import EngineStep
from attnproof.harness.model.verdict import ENGINE
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import examine
from attnproof.harness.running.worker.worker import warm_up
from attnproof.harness.strength.pairs.catalogue import all_pairs
from attnproof.harness.strength.processes import in_processes

Side = Literal["before", "after"]
_TARGETS = "attnproof.harness.strength.pairs.catalogue"


class Sighting(msgspec.Struct, frozen=True):
    """Result of one run on one side of a pair."""

    pair: int
    """Position of the pair in the list of all pairs."""
    side: Side
    seed: int
    cases: int
    """Cases of the run, those of shrinking not counted."""
    seconds: float
    findings: list[str]
    """A sentence for each finding of a class that fails a candidate by default."""
    advice: list[str]
    """A sentence for each finding of another class, or the reason for no verdict."""
    oracle: str = ""
    """Oracle of the first finding."""
    requests: int = 0
    """Requests of its smallest case."""
    tokens: int = 0
    """Query tokens of its smallest case."""


def plan_sides(numbers: list[int]) -> list[tuple[int, Side]]:
    """Return the sides to verify: each bug, and each backend without a bug once."""
    pairs, seen = all_pairs(), set()
    sides: list[tuple[int, Side]] = [(number, "before") for number in numbers]
    for number in numbers:
        backend = (pairs[number].operation, pairs[number].part)
        if backend not in seen and pairs[number].can_alarm:
            seen.add(backend)
            sides.append((number, "after"))
    return sides


def look(
    sides: list[tuple[int, Side]],
    seeds: list[int],
    jobs: int,
    steps: list[EngineStep],
    settings: Settings,
) -> Iterator[Sighting]:
    """Verify the sides with each seed, `jobs` at a time; yield the results as they come."""
    warm_up()
    with tempfile.TemporaryDirectory(prefix="attnproof-strength-") as folder:
        each = [
            (number, side, steps, msgspec.structs.replace(settings, seed=seed), Path(folder))
            for seed in seeds
            for number, side in sides
        ]
        for call, sighting in in_processes(_verify, each, jobs):
            if sighting is None:
                raise InfrastructureError(f"pair {call[0]} ({call[1]}): its process has ended")
            yield sighting


def _verify(
    number: int, side: Side, steps: list[EngineStep], settings: Settings, folder: Path
) -> Sighting:
    """Verify one side of a pair as `verify` does."""
    pair, started = all_pairs()[number], time.monotonic()
    name = f"{side}_{number}"
    candidate = Candidate(name, f"{_TARGETS}:{name}", judged=ENGINE)
    ledger = folder / f"{name}-{settings.seed}.jsonl"
    outcome = examine(ALL[pair.operation], candidate, settings, steps, [], ledger)
    first = outcome.findings[0] if outcome.findings else None
    unverified = outcome.result.verdict == "UNVERIFIED"
    return Sighting(
        pair=number,
        side=side,
        seed=settings.seed,
        cases=outcome.result.cases,
        seconds=round(time.monotonic() - started, 1),
        findings=[f"{finding.oracle}: {finding.message}" for finding in outcome.findings],
        advice=[f"{finding.oracle}: {finding.message}" for finding in outcome.advice]
        + [outcome.result.reason] * unverified,
        oracle=first.oracle if first else "",
        requests=first.requests if first else 0,
        tokens=first.tokens if first else 0,
    )
