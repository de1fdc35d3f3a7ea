"""A run: the verdicts and findings of one invocation. Field names are those of summary.json."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from attnproof.harness.model.case import Case, Origin
from attnproof.harness.model.place import Place
from attnproof.harness.model.timing import Bench

Verdict = Literal["PASS", "FAIL", "DEVIATES", "UNVERIFIED", "NOT OFFERED"]
"""DEVIATES: every failure is a known deviation."""
RunVerdict = Literal["PASS", "FAIL", "INCOMPLETE", "SLOWER"]
"""SLOWER: right, and slower than the baseline allows."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run took place."""

    attnproof: str
    python: str
    torch: str
    numpy: str
    triton: str | None
    numba: str | None
    xformers: str | None
    platform: str
    cpu: str
    cpus: int
    gpu: str | None
    """Name of the GPU, None without one."""
    commit: str | None
    """Commit of the working tree, with "+" behind it when there are uncommitted changes."""


class OracleCount(msgspec.Struct):
    """What one oracle did on one operation and candidate."""

    checks: int = 0
    failed: int = 0
    known: int = 0
    """Cases on which it objected because of known deviations only."""
    reason: str = ""
    """Why it made no check, "" if it made some."""


class OperationResult(msgspec.Struct, kw_only=True):
    """The verdict on one operation of one candidate."""

    name: str
    section: str
    """Section of SPEC.md, such as "3"."""
    candidate: str
    device: str
    """"cpu", "interpreter" or "cuda"."""
    verdict: Verdict
    reason: str = ""
    """Why the verdict is UNVERIFIED or NOT OFFERED."""
    cases: int = 0
    checks: int = 0
    failed: int = 0
    """Cases that failed, other than by known deviations only."""
    known: int = 0
    """Cases that showed known deviations and nothing else that is wrong."""
    origins: dict[str, int] = {}
    """Cases by origin."""
    oracles: dict[str, OracleCount] = {}
    seconds: float = 0.0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One output field as both sides gave it: nested lists and scalars."""

    field: str
    step: int | None = None
    """Index of the step that the field belongs to, None outside sequences."""
    expected: Any
    got: Any
    expected_type: str
    """Such as "int32 [3, 2] cpu" or "int"."""
    got_type: str
    equal: bool
    wrong: list[list[int]] | None = None
    """Indices of the wrong elements, None for every one that differs (none is a don't-care)."""


class Finding(msgspec.Struct, kw_only=True):
    """One root cause, with the smallest case that shows it."""

    id: str
    """Hash of operation, candidate, oracle and field: the same bug keeps its id."""
    operation: str
    candidate: str
    device: str
    oracle: str
    field: str
    """The first wrong field, with the index of its first wrong element."""
    place: Place | None = None
    """Place of the first wrong output, None without one."""
    diagnosis: str
    """What went wrong in words of the domain."""
    message: str
    """One sentence: what, where, expected and got."""
    expected: str
    got: str
    case: Case
    case_id: str
    case_path: str
    origin: Origin
    source: str
    requests: int
    tokens: int
    requests_before: int
    """Requests of the case that first failed, before shrinking."""
    tokens_before: int
    steps: list[tuple[str, str]] = []
    """Of a sequence: each step in words and as source."""
    steps_before: int = 0
    """Steps of the sequence that first failed, before shrinking."""
    snippet: str = ""
    """Of a sequence: the program that shows what went wrong."""
    failed_cases: int
    """Cases of this run that failed in the same way."""
    command: str
    """The `attnproof replay` line that shows it."""
    outputs: list[Difference] = []
    """All output fields of the shrunk case, the first wrong one and its neighbours."""
    log: str = ""
    """Traceback or captured output of the candidate."""


class DeviationResult(msgspec.Struct, kw_only=True):
    """What became of one known deviation in a run, on one operation of one candidate."""

    id: str
    title: str
    reference: str
    since: str
    operation: str
    candidate: str
    version: str
    """Of the candidate's package."""
    cases: int
    """Cases that showed it; 0 means it is stale."""
    oracles: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    """Where it showed."""
    shown: Finding | None = None
    """The smallest case that showed it, as a failure is shown; None if it is stale."""

    @property
    def stale(self) -> bool:
        """Whether it should have occurred and did not."""
        return self.cases == 0

    @property
    def case(self) -> Case | None:
        """The smallest case that showed it."""
        return self.shown.case if self.shown else None

    @property
    def case_path(self) -> str:
        """Where that case is saved, "" without one."""
        return self.shown.case_path if self.shown else ""

    @property
    def message(self) -> str:
        """One sentence about that case: what, where, expected and got."""
        return self.shown.message if self.shown else ""

    @property
    def command(self) -> str:
        """The `attnproof replay` line that shows it."""
        return self.shown.command if self.shown else ""


class Counts(msgspec.Struct, kw_only=True):
    """Sums over the run."""

    cases: int
    checks: int
    failed: int
    """Operation and candidate pairs that failed."""
    deviating: int
    """Pairs of which every failure is a known deviation."""
    unverified: int


class Run(msgspec.Struct, kw_only=True):
    """Everything one invocation of `attnproof verify` found out."""

    verdict: RunVerdict
    reason: str = ""
    """Why the run is INCOMPLETE."""
    seed: int
    started: str
    """ISO 8601, UTC."""
    seconds: float
    command: str
    environment: Environment
    settings: dict[str, Any]
    """Examples, seconds, traces, jobs and so on, as resolved."""
    operations: list[OperationResult]
    findings: list[Finding]
    notes: list[str] = []
    """What this run did not look at, and why."""
    deviations: list[DeviationResult] = []
    """Known deviations of the candidates, stale ones too."""
    bench: Bench | None = None
    """Timings, None if nothing was timed."""

    @property
    def counts(self) -> Counts:
        """Sums over the operations."""
        return Counts(
            cases=sum(result.cases for result in self.operations),
            checks=sum(result.checks for result in self.operations),
            failed=sum(result.verdict == "FAIL" for result in self.operations),
            deviating=sum(result.verdict == "DEVIATES" for result in self.operations),
            unverified=sum(result.verdict == "UNVERIFIED" for result in self.operations),
        )
