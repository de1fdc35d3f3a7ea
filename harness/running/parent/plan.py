"""The plan of a run: its operations and candidates, and the pairs of them that are skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import NamedTuple

import msgspec

from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate
from attnproof.harness.model.case import EngineStep, Sourced
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.run import Cause, Reason, Verdict
from attnproof.harness.running.candidates import BUILT_IN
from attnproof.harness.running.devices import why_absent
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.extras import install_hint
from attnproof.harness.running.own_operations import own_names
from attnproof.harness.running.task.candidate_process import CandidateUnloadableError
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.triton_launches import launching_operations
from attnproof.harness.running.task.workers import Worker

INTERPRETED_SHARE = 4
"""One in this many engine steps is run in Triton's interpreter, even in a thorough run."""
_OWN = "`attnproof init` begins a definition of any other function, which --operations names"
_HOST_ONLY = Reason(Cause.HOST_ONLY, "reads only CPU mirrors: there is no device path to verify")
_LAUNCHES = Reason(
    Cause.NO_GPU,
    "launches Triton, which only a GPU times; `attnproof verify` judges it in the interpreter",
)
_CHECKS_OFF = Reason(Cause.CHECKS_OFF, "some steps are malformed, and its checks are off")

Lacking = dict[str, dict[str, Reason]]
"""Reasons for operations that are not offered, by candidate and operation."""


@dataclass(frozen=True)
class Plan:
    """The operations, candidates and cases of a run."""

    operations: list[Operation]
    candidates: list[Candidate]
    settings: Settings
    steps: list[EngineStep]
    """Engine steps of traces and recordings."""
    corpus: list[Sourced]
    jobs: int
    lacking: Lacking = field(default_factory=dict)
    """Result of `probe`: no task is started for these pairs."""
    maxfail: int = 0
    """Number of findings after which no further pair is begun, 0 for no limit."""


class Skip(NamedTuple):
    """The verdict on a pair of operation and candidate that is not examined."""

    verdict: Verdict
    reason: Reason


class Probed(NamedTuple):
    """Candidates as their imports have shown them."""

    candidates: list[Candidate]
    """All candidates, each with its interface."""
    lacking: Lacking
    launching: dict[str, frozenset[str]]
    """Operations whose functions launch Triton, by candidate on the CPU."""


def probe(candidates: list[Candidate], operations: list[Operation], settings: Settings) -> Probed:
    """Import each candidate in a worker, except those built in.

    Raises UsageError for a candidate that cannot be imported or offers no operation.
    """
    by_name = {operation.name: operation for operation in operations}
    probed = Probed([], {}, {})
    for candidate in candidates:
        if candidate in BUILT_IN or why_absent(candidate):
            probed.candidates.append(candidate)
            continue
        try:
            worker = Worker(
                candidate, by_name, timeout_s=settings.timeout_s, memory_bytes=settings.memory_bytes
            )
        except CandidateUnloadableError as error:
            raise UsageError(str(error)) from None
        try:
            launches = launching_operations(worker, by_name)
        finally:
            worker.stop()
        if not worker.offers:
            own = [name for name in by_name if name in own_names()]
            functions = [name for name in by_name if name.islower()]
            hints = _misspelt(worker) or ([] if own else [_OWN])
            near = "".join(f"; {hint}" for hint in hints)
            raise UsageError(
                f"candidate {candidate.name} offers none of the operations asked for: "
                f"define functions such as {[*own, *functions, *by_name][0]}{near}"
            )
        reasons = {name: worker.why_not_offered(name) for name in by_name}
        lacking = {name: why for name, why in reasons.items() if why is not None}
        probed.candidates.append(worker.candidate)
        probed.lacking[candidate.name] = lacking
        probed.launching[candidate.name] = launches
    return probed


def with_interpreted(probed: Probed) -> list[Candidate]:
    """Return the candidates; what launches Triton is judged in its interpreter."""
    return [
        msgspec.structs.replace(candidate, interpreted=probed.launching[candidate.name])
        if probed.launching.get(candidate.name)
        else candidate
        for candidate in probed.candidates
    ]


def without_kernels(probed: Probed, operations: list[Operation]) -> Lacking:
    """Return reasons for what is not offered, and for what cannot be timed on a CPU.

    Triton's interpreter has no speed. Raises UsageError for a candidate of which nothing is left.
    """
    lacking = dict(probed.lacking)
    for name, launches in probed.launching.items():
        lacking[name] = dict.fromkeys(sorted(launches), _LAUNCHES) | lacking[name]
        if launches and all(operation.name in lacking[name] for operation in operations):
            raise UsageError(f"candidate {name}: each operation {_LAUNCHES.text}")
    return lacking


def launch_lines(candidates: Iterable[Candidate]) -> list[str]:
    """Return a line for each candidate with operations that launch Triton."""
    return [
        f"{', '.join(sorted(candidate.interpreted))} of {candidate.name}: launches Triton: judged "
        "in the interpreter"
        for candidate in candidates
        if candidate.interpreted
    ]


def _misspelt(worker: Worker) -> list[str]:
    return [f"{own}: did you mean {name}?" for name, own in worker.misspelt.items()]


def unrun_notes(lacking: Lacking) -> list[str]:
    """Return a note on each function that is not timed, or nearly has an operation's name."""
    return [
        f"{name} on {candidate}: {reason.text}"
        for candidate, reasons in lacking.items()
        for name, reason in reasons.items()
        if reason is _LAUNCHES
        or (reason.cause is Cause.NO_FUNCTION and "did you mean" in reason.text)
    ]


def find_skip(operation: Operation, candidate: Candidate) -> Skip | None:
    """Return why this pair cannot be examined on this machine, None if it can."""
    if absent := why_absent(candidate):
        return Skip("UNVERIFIED", Reason(Cause.NO_GPU, absent))
    if candidate.kernels_only and not operation.built_in.kernels:
        return Skip("NOT OFFERED", _HOST_ONLY)
    if operation.built_in.malformed_steps and not candidate.checked:
        return Skip("NOT OFFERED", _CHECKS_OFF)
    if operation.built_in.absent and candidate.target in (OPTIMIZED, REFERENCE):
        return Skip("NOT OFFERED", Reason(Cause.NO_FUNCTION, operation.built_in.absent))
    package = operation.built_in.package if candidate.target == OPTIMIZED else ""
    if package and find_spec(package) is None:
        return Skip("UNVERIFIED", Reason(Cause.PACKAGE_ABSENT, _absent(package)))
    return None


def _absent(package: str) -> str:
    hint = install_hint(package)
    return f"{package} is not installed" + (f": {hint}" if hint else "")


def steps_on(
    candidate: Candidate, steps: list[EngineStep], costly_share: int = 1
) -> list[EngineStep]:
    """Return the engine steps to run on a candidate, a share of them if its cases are costly."""
    # A kernel takes tens of milliseconds there: 200 large batches would take minutes.
    if candidate.lane == "interpreter":
        return steps[:: INTERPRETED_SHARE * costly_share]
    return steps if candidate.checked else steps[::costly_share]
