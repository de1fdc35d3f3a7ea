"""The builder of a run: verification fills its fields first, timing afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from attnproof.harness.model.run import (
    DeviationResult,
    Environment,
    Finding,
    OperationResult,
    Run,
    RunVerdict,
)
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
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    deviations: list[DeviationResult] = field(default_factory=list)
    bench: Bench | None = None

    def build(self) -> Run:
        """Return the frozen run."""
        return Run(**{name: getattr(self, name) for name in Run.__struct_fields__})
