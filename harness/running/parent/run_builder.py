"""The builder of a run: verification fills its fields first, timing afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec

from attnproof.harness.model.run import (
    DeviationResult,
    Environment,
    Finding,
    OperationResult,
    Run,
    RunVerdict,
)
from attnproof.harness.model.strength import Strength
from attnproof.harness.model.timing import Bench


@dataclass(kw_only=True)
class RunBuilder:
    """Mutable fields of a `Run`."""

    verdict: RunVerdict
    reason: str
    seed: int
    started: str
    command: str
    environment: Environment
    settings: dict[str, Any]
    operations: list[OperationResult]
    findings: list[Finding]
    advice: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    deviations: list[DeviationResult] = field(default_factory=list)
    bench: Bench | None = None
    strength: Strength = field(default_factory=Strength)

    def fail(self, reasons: Mapping[tuple[str, str], str]) -> None:
        """Let verified operations fail for reasons, by operation and candidate."""
        if not reasons:
            return
        self.operations = [
            msgspec.structs.replace(result, verdict="FAIL", reason=reason)
            if (reason := reasons.get((result.name, result.candidate)))
            else result
            for result in self.operations
        ]
        first, *others = (f"{name} of {who} {why}" for (name, who), why in reasons.items())
        more = f", and {len(others)} more" if others else ""
        self.reason = "; ".join(filter(None, [first + more, self.reason]))
        self.verdict = "FAIL"

    def build(self) -> Run:
        """Return the frozen run."""
        names = [attribute.name for attribute in fields(self)]
        return Run(**{name: getattr(self, name) for name in names})
