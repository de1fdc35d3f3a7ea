"""The verdicts of a run, which select the cases to time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.case import Case
from attnproof.harness.model.run import OperationResult
from attnproof.harness.model.verdict import ERRORS

_VERIFIED = ("PASS", "DEVIATES")


class CaseVerdict(msgspec.Struct, frozen=True):
    """The verdict on one case, as a line of a ledger."""

    id: str
    """Id of the case."""
    failures: list[tuple[str, str, str]] = []
    """Failures that no known deviation explains: oracle, field, diagnosis."""
    known: list[tuple[str, str, str, str]] = []
    """Failures by known deviations: id of the deviation, oracle, field, diagnosis."""


@dataclass
class CandidateVerdicts:
    """The verdicts on one candidate's operations and cases."""

    lane: Lane
    results: dict[str, OperationResult]
    cases: dict[str, CaseVerdict] = field(default_factory=dict)
    """Verdicts by id of the case."""

    def why_untimed(self, operation: str, case: Case, *, verified: bool = True) -> str:
        """Return why the case of the operation may not be timed, "" if it may.

        Without `verified` the run has not judged the case, only others of the operation.
        """
        result = self.results.get(operation)
        if result is None:
            return "not verified"
        if result.verdict == "NOT OFFERED":
            return f"not offered: {result.reason}" if result.reason else "not offered"
        if result.verdict == "UNVERIFIED":
            return f"not verified: {result.reason}"
        if result.device != self.lane:
            return "launches Triton: judged in the interpreter, which has no speed"
        if result.verdict not in _VERIFIED:
            return f"failed verification: {result.reason or f'{result.failed} cases are wrong'}"
        if not verified:
            return ""
        if case.id not in self.cases:
            return "not verified on this workload"
        failures = self.cases[case.id].failures
        return f"failed on this workload: {failures[0][2]}" if failures else ""

    def deviations_on(self, case: Case) -> tuple[str, ...]:
        """Return the ids of the known deviations that show on the case."""
        return tuple(dict.fromkeys(name for name, *_ in self._known(case)))

    def deviates_on(self, case: Case) -> bool:
        """True if a known deviation shows on the case."""
        return bool(self._known(case))

    def raising_deviations(self, case: Case) -> tuple[str, ...]:
        """Return the ids of the known deviations by which the candidate raises on the case."""
        known = self._known(case)
        return tuple(dict.fromkeys(name for name, oracle, *_ in known if oracle == ERRORS))

    def _known(self, case: Case) -> list[tuple[str, str, str, str]]:
        verdict = self.cases.get(case.id)
        return verdict.known if verdict else []


def read_ledgers(paths: Iterable[Path]) -> dict[str, CaseVerdict]:
    """Return every verdict by the id of its case.

    A case may be judged again, as in a fresh process; all its failures count.
    """
    decode = msgspec.json.Decoder(CaseVerdict).decode
    verdicts: dict[str, CaseVerdict] = {}
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(b'{"event":"verdict"'):
                    verdict = decode(line)
                    earlier = verdicts.get(verdict.id, verdict)
                    verdicts[verdict.id] = CaseVerdict(
                        verdict.id,
                        list(dict.fromkeys(earlier.failures + verdict.failures)),
                        list(dict.fromkeys(earlier.known + verdict.known)),
                    )
    return verdicts
