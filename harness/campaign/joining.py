"""Join the outcomes of a pair's tasks: counts are added, a root cause is one finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from attnproof.harness.model.case import Origin
from attnproof.harness.model.run import (
    DeviationResult,
    Evidence,
    Finding,
    OperationResult,
    OracleCount,
)


@dataclass
class Seen:
    """What the tasks of a pair tell of one root cause."""

    first: Finding
    """Finding of the task that saw it first, with the case as it was drawn."""
    failed: int = 0
    shown: Counter[Origin] = field(default_factory=Counter)
    """Cases that show it, by origin."""

    def add(self, finding: Finding) -> None:
        """Add the counts of a task."""
        self.failed += finding.failed_cases
        for origin, evidence in finding.evidence.items():
            self.shown[origin] += evidence.shown  # type: ignore[index]

    def told_of(self, finding: Finding, origins: Mapping[str, int]) -> Finding:
        """Return the finding with the counts of all tasks; `origins` counts their cases."""
        first = self.first
        return msgspec.structs.replace(
            finding,
            origin=first.origin,
            source=first.source,
            requests_before=first.requests_before,
            tokens_before=first.tokens_before,
            steps_before=first.steps_before,
            failed_cases=self.failed,
            evidence={
                origin: Evidence(self.shown[origin], count)  # type: ignore[index]
                for origin, count in origins.items()
                if origin != "shrinking"
            },
        )


def size_of(finding: Finding) -> tuple[int, int]:
    """Return requests and tokens of the case: of two findings the smaller is shown."""
    return finding.requests, finding.tokens


def add_results(one: OperationResult, other: OperationResult) -> OperationResult:
    """Return the first result with the counts of both."""
    oracles = dict(one.oracles)
    for name, count in other.oracles.items():
        oracles[name] = _add_checks(oracles.get(name, OracleCount()), count)
    features = {origin: dict(counts) for origin, counts in one.features.items()}
    for origin, counts in other.features.items():
        features[origin] = _add(features.get(origin, {}), counts)
    return msgspec.structs.replace(
        one,
        cases=one.cases + other.cases,
        checks=one.checks + other.checks,
        failed=one.failed + other.failed,
        known=one.known + other.known,
        origins=_add(one.origins, other.origins),
        oracles=oracles,
        causes=tuple(sorted({*one.causes, *other.causes})),
        features=features,
        seconds=round(one.seconds + other.seconds, 3),
    )


def add_deviations(one: DeviationResult, other: DeviationResult) -> DeviationResult:
    """Return a known deviation with the cases of both, and the smaller of their cases."""
    shown = [each.shown for each in (one, other) if each.shown]
    return msgspec.structs.replace(
        one,
        cases=one.cases + other.cases,
        oracles=_union(one.oracles, other.oracles),
        fields=_union(one.fields, other.fields),
        kinds=_union(one.kinds, other.kinds),
        shown=min(shown, key=size_of, default=None),
    )


def add_advice(one: Finding, other: Finding) -> Finding:
    """Return the finding of the smaller case, with the cases of both."""
    smaller = min((one, other), key=size_of)
    seen = Seen(one)
    seen.add(one)
    seen.add(other)
    origins = [{o: e.cases for o, e in each.evidence.items()} for each in (one, other)]
    told = seen.told_of(smaller, _add(*origins))
    return msgspec.structs.replace(told, origin=smaller.origin, source=smaller.source)


def _add(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in [*one, *other]}


def _add_checks(one: OracleCount, other: OracleCount) -> OracleCount:
    return OracleCount(
        checks=one.checks + other.checks,
        failed=one.failed + other.failed,
        known=one.known + other.known,
        reason=one.reason and other.reason,
    )


def _union(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*one, *other)))
