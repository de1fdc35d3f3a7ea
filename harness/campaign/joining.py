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


def add_results(result: OperationResult, other: OperationResult) -> OperationResult:
    """Return the first result with the counts of both."""
    oracles = dict(result.oracles)
    for name, count in other.oracles.items():
        oracles[name] = _add_checks(oracles.get(name, OracleCount()), count)
    features = {origin: dict(counts) for origin, counts in result.features.items()}
    for origin, counts in other.features.items():
        features[origin] = _add(features.get(origin, {}), counts)
    return msgspec.structs.replace(
        result,
        cases=result.cases + other.cases,
        checks=result.checks + other.checks,
        failed=result.failed + other.failed,
        known=result.known + other.known,
        origins=_add(result.origins, other.origins),
        oracles=oracles,
        causes=tuple(sorted({*result.causes, *other.causes})),
        features=features,
        steps=_add(result.steps, other.steps),
        seconds=round(result.seconds + other.seconds, 3),
    )


def add_deviations(deviation: DeviationResult, other: DeviationResult) -> DeviationResult:
    """Return a known deviation with the cases of both, and the smaller of their cases."""
    shown = [each.shown for each in (deviation, other) if each.shown]
    return msgspec.structs.replace(
        deviation,
        cases=deviation.cases + other.cases,
        oracles=_union(deviation.oracles, other.oracles),
        fields=_union(deviation.fields, other.fields),
        kinds=_union(deviation.kinds, other.kinds),
        shown=min(shown, key=size_of, default=None),
    )


def add_advice(finding: Finding, other: Finding) -> Finding:
    """Return the finding of the smaller case, with the cases of both."""
    smaller = min((finding, other), key=size_of)
    seen = Seen(finding)
    seen.add(finding)
    seen.add(other)
    origins = [{o: e.cases for o, e in each.evidence.items()} for each in (finding, other)]
    advice = seen.told_of(smaller, _add(*origins))
    return msgspec.structs.replace(advice, origin=smaller.origin, source=smaller.source)


def _add(counts: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + other.get(name, 0) for name in [*counts, *other]}


def _add_checks(count: OracleCount, other: OracleCount) -> OracleCount:
    return OracleCount(
        checks=count.checks + other.checks,
        failed=count.failed + other.failed,
        known=count.known + other.known,
        reason=count.reason and other.reason,
    )


def _union(names: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*names, *other)))
