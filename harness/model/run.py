"""The result of one invocation: verdicts, findings, timings. Field names as in summary.json."""

from __future__ import annotations

from enum import auto
from typing import Any, Literal

import msgspec

from attnproof.harness.backports import StrEnum
from attnproof.harness.model.case import Case, Origin
from attnproof.harness.model.comparison import Comparison
from attnproof.harness.model.place import Place
from attnproof.harness.model.strength import Strength
from attnproof.harness.model.timing import Bench
from attnproof.harness.model.verdict import Kind, cause_of

Verdict = Literal["PASS", "FAIL", "DEVIATES", "UNVERIFIED", "NOT OFFERED"]
"""DEVIATES: every failure is a known deviation."""
RunVerdict = Literal["PASS", "FAIL", "INCOMPLETE", "SLOWER"]
"""SLOWER: all results are right, and a timing is slower than the baseline allows."""


class Cause(StrEnum):
    """Kinds of reasons for a verdict UNVERIFIED or NOT OFFERED."""

    NO_GPU = auto()
    HOST_ONLY = auto()
    """The candidate has only kernels, and the operation has none."""
    CHECKS_OFF = auto()
    """The candidate does not check its input, and the operation's steps include malformed input."""
    PACKAGE_ABSENT = auto()
    NO_FUNCTION = auto()
    NOT_PROVIDED = auto()
    """The candidate needs what only an installed engine has, or a config of its own."""
    WITHHELD = auto()
    """The candidate gives the reason in its NOT_OFFERED."""
    NAMED_IN_OPS = auto()
    """Not offered, and named in --ops."""
    UNLOADABLE = auto()
    DEVIATIONS_FILE = auto()
    INTERRUPTED = auto()
    ENOUGH_FINDINGS = auto()
    """The run had as many findings as --maxfail allows before it began."""
    TOO_MANY_DEATHS = auto()
    PARTS_FAIL = auto()
    """Every function of the candidate that a sequence calls fails by itself."""
    NOTHING_DRAWN = auto()
    """The strategy of the operation gives no case."""
    NOT_REPEATED = auto()
    """A crash, a hang or a single wrong value that a fresh process did not show again."""
    RECORDING = auto()
    """A recording has a value that cannot be read."""
    INVALID_CASE = auto()
    """The harness failed on a case."""
    REFERENCE_FAILED = auto()
    """The reference raised an error that it does not document."""
    TASK_DIED = auto()
    """A process of the harness ended."""
    MACHINE = auto()
    """The machine failed, such as a full disk."""


FAULTS = (Cause.INVALID_CASE, Cause.REFERENCE_FAILED, Cause.TASK_DIED, Cause.MACHINE)
"""Causes that are no result of a candidate: the harness, a reference or the machine failed."""
EXPECTED = (Cause.HOST_ONLY, Cause.CHECKS_OFF)
"""Causes for which a candidate of ours is not judged on an operation that it has."""


class Reason(msgspec.Struct, frozen=True):
    """The reason for a verdict UNVERIFIED or NOT OFFERED."""

    cause: Cause
    text: str
    """The reason in words, for the report."""
    log: str = ""
    """Traceback of a fault of the harness."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """The machine and software of a run."""

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
    """Commit of the working tree, followed by "+" if there are uncommitted changes."""


class OracleCount(msgspec.Struct, frozen=True):
    """The checks of one oracle on one operation and candidate."""

    checks: int = 0
    failed: int = 0
    known: int = 0
    """Cases that fail this oracle because of known deviations only."""
    reason: str = ""
    """Reason for no check, "" if there were some."""


class OperationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on one operation of one candidate, with its counts."""

    name: str
    section: str
    """Section of SPEC.md, such as "3"."""
    candidate: str
    device: str
    """Lane: "interpreter", or a device of torch such as "cpu" or "cuda:1"."""
    verdict: Verdict
    reason: str = ""
    """Reason for a verdict UNVERIFIED or NOT OFFERED, for an examination cut short, or for a
    failure while the operation was timed."""
    cause: Cause | None = None
    """Kind of that reason."""
    log: str = ""
    """Traceback of a fault of the harness."""
    cases: int = 0
    checks: int = 0
    failed: int = 0
    """Cases with a failure that is not a known deviation."""
    known: int = 0
    """Cases whose failures are all known deviations."""
    advice: int = 0
    """Findings that do not fail the candidate."""
    origins: dict[str, int] = {}
    """Cases by origin; "shrinking" are those tried to make a failing case smaller."""
    oracles: dict[str, OracleCount] = {}
    causes: tuple[str, ...] = ()
    """Causes that some case shows (`cause_of` each root cause), sorted: findings, and what follows
    from them."""
    features: dict[str, dict[str, int]] = {}
    """Well-formed cases by origin and by the cells that they fill (`cases.coverage.features`), a
    hexadecimal bit mask."""
    steps: dict[str, int] = {}
    """Steps of well-formed cases by method, of a class that a user defined."""
    seconds: float = 0.0


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One output field of the reference and of the candidate: nested lists and scalars."""

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
    """Indices of the wrong elements; None if every element that differs is wrong."""


class Evidence(msgspec.Struct, frozen=True):
    """Cases of one origin that show a finding, of those that were run."""

    shown: int
    cases: int


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One root cause, with the smallest case that shows it."""

    id: str
    """Hash of operation, candidate, oracle and field: the same bug keeps its id."""
    root: tuple[str, str, str]
    """`Failure.root`: equal for two findings of one operation by the same bug."""
    operation: str
    candidate: str
    device: str
    oracle: str
    kind: Kind
    """Class of the finding."""
    field: str
    """The first wrong field, with the index of its first wrong element."""
    place: Place | None = None
    """Place of the first wrong output, None without one."""
    fields: tuple[str, ...] = ()
    """All fields that are wrong by the same root cause."""
    diagnosis: str
    """The mistake in words of the domain."""
    message: str
    """One sentence: the mistake, its place, expected and got."""
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
    also: tuple[str, ...] = ()
    """Other operations that fail because of it: with the reference's function instead of the
    candidate's they pass."""
    steps: list[tuple[str, str]] = []
    """Steps of a sequence: each in words and as source."""
    steps_before: int = 0
    """Steps of the sequence that first failed, before shrinking."""
    snippet: str = ""
    """Program that reproduces the failure: the steps of a sequence, or one call with the expected
    values, which needs torch and the candidate's module alone."""
    no_snippet: str = ""
    """Why there is no program, "" if there is one."""
    arguments: list[str] = []
    """A line on each argument of a call: its value, or dtype, shape, device and stride."""
    failed_cases: int
    """Cases of this run that failed by the same root cause, those of shrinking too."""
    evidence: dict[str, Evidence] = {}
    """Cases that show it, by origin."""
    unreal: str = ""
    """Why no engine makes the shrunk case, "" if one may."""
    function: str = ""
    """Source of the candidate's function or class, such as "backend.py:12"; "" if unknown."""
    kernel: str = ""
    """A sentence on what a kernel reads or writes wrongly in the smallest case, "" if unknown."""
    interface: str = ""
    """A sentence on the interfaces in which the case passes, "" without any."""
    engine: str = ""
    """A phrase on an engine with this known deviation, "" without any."""
    command: str
    """The `attnproof replay` command that reproduces it."""
    outputs: list[Difference] = []
    """All output fields of the shrunk case."""
    log: str = ""
    """Traceback or captured output of the candidate."""

    @property
    def has_known_mistake(self) -> bool:
        """True if the diagnosis names a mistake, and does not repeat the message."""
        return not (self.message and self.diagnosis.startswith(self.message))

    @property
    def cause(self) -> str:
        """Cause as text that is equal in each run."""
        return cause_of(self.root)


class DeviationResult(msgspec.Struct, frozen=True, kw_only=True):
    """One known deviation in a run, on one operation of one candidate."""

    id: str
    title: str
    reference: str
    since: str
    operation: str
    candidate: str
    version: str
    """Version of the candidate's package."""
    cases: int
    """Cases that showed it; 0 means that it is stale."""
    kinds: tuple[Kind, ...] = ()
    """Classes of its failures."""
    oracles: tuple[str, ...] = ()
    """Oracles that failed because of it."""
    fields: tuple[str, ...] = ()
    """Output fields that were wrong because of it."""
    shown: Finding | None = None
    """The smallest case that showed it, in the form of a finding; None if it is stale."""

    @property
    def stale(self) -> bool:
        """True if it was expected to occur and did not."""
        return self.cases == 0

    @property
    def evidence(self) -> dict[str, Evidence]:
        """Cases that show it, by origin."""
        return self.shown.evidence if self.shown else {}

    @property
    def case(self) -> Case | None:
        """The smallest case that showed it."""
        return self.shown.case if self.shown else None

    @property
    def case_path(self) -> str:
        """Path of that case's file, "" without one."""
        return self.shown.case_path if self.shown else ""

    @property
    def message(self) -> str:
        """One sentence about that case: the mistake, its place, expected and got."""
        return self.shown.message if self.shown else ""

    @property
    def command(self) -> str:
        """The `attnproof replay` command that reproduces it."""
        return self.shown.command if self.shown else ""


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a run."""

    cases: int
    checks: int
    failed: int
    """Operation and candidate pairs that failed."""
    deviating: int
    """Pairs whose failures are all known deviations."""
    unverified: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one invocation of `attnproof verify`; `RunBuilder` makes it."""

    verdict: RunVerdict
    reason: str = ""
    """Reason for a verdict INCOMPLETE or SLOWER."""
    seed: int
    started: str
    """ISO 8601, UTC."""
    seconds: float
    command: str
    environment: Environment
    settings: dict[str, Any]
    """Resolved options: examples, seconds, traces, jobs and so on."""
    operations: list[OperationResult]
    findings: list[Finding]
    advice: list[Finding] = []
    """Findings of classes that do not fail their candidates."""
    notes: list[str] = []
    """Parts that this run did not examine, each with its reason."""
    deviations: list[DeviationResult] = []
    """Known deviations of the candidates, stale ones too."""
    bench: Bench | None = None
    """Timings, None if nothing was timed."""
    strength: Strength = Strength()
    """Measured strength of the checks, as far as files of it were found."""
    base: Comparison | None = None
    """Comparison with an earlier run, None without `--base`."""

    @property
    def counts(self) -> Counts:
        """Sums over the operations and candidates."""
        return Counts(
            cases=sum(result.cases for result in self.operations),
            checks=sum(result.checks for result in self.operations),
            failed=sum(result.verdict == "FAIL" for result in self.operations),
            deviating=sum(result.verdict == "DEVIATES" for result in self.operations),
            unverified=sum(result.verdict == "UNVERIFIED" for result in self.operations),
        )
