"""What a run has verified so far, and so what may be timed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.model.candidate import Lane
from harness.model.case import Case
from harness.model.deviation import Deviation
from harness.model.run import OperationResult
from harness.model.verdict import Failure
from harness.running.deviations import explain

_VERIFIED = ("PASS", "DEVIATES")


class _Line(msgspec.Struct):
    """What matters of a line of a ledger."""

    event: str
    id: str = ""
    failures: list[tuple[str, str, str]] = []


@dataclass
class Standing:
    """The verdicts on one candidate's operations, and the cases that failed."""

    lane: Lane
    results: dict[str, OperationResult]
    deviations: tuple[Deviation, ...] = ()
    judged: dict[str, tuple[Failure, ...]] = field(default_factory=dict)
    """How each case went, by its id."""

    def bar(self, operation: str, case: Case) -> str:
        """Why the case of the operation may not be timed, "" if it may."""
        result = self.results.get(operation)
        if result is None:
            return "not verified"
        if result.verdict == "NOT OFFERED":
            return "not offered"
        if result.verdict == "UNVERIFIED":
            return f"not verified: {result.reason}"
        if result.verdict not in _VERIFIED:
            return f"failed verification: {result.reason or f'{result.failed} cases are wrong'}"
        if case.id not in self.judged:
            return "not verified on this workload"
        explained = explain(self.deviations, case, self.judged[case.id])
        if explained.unknown:
            return f"failed on this workload: {explained.unknown[0].diagnosis}"
        return ""

    def known(self, case: Case) -> tuple[str, ...]:
        """Ids of the known deviations that show on the case."""
        explained = explain(self.deviations, case, self.judged.get(case.id, ()))
        return tuple(dict.fromkeys(deviation.id for deviation, _ in explained.known))


def read_ledgers(paths: Iterable[Path]) -> dict[str, tuple[Failure, ...]]:
    """The failures of every judged case by its id."""
    judged = {}
    decode = msgspec.json.Decoder(_Line).decode
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(b'{"event":"verdict"'):
                    read = decode(line)
                    judged[read.id] = tuple(_failure(*failure) for failure in read.failures)
    return judged


def _failure(oracle: str, name: str, diagnosis: str) -> Failure:
    return Failure(oracle=oracle, field=name, diagnosis=diagnosis, message=diagnosis)
