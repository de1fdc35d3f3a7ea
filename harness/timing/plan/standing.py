"""What a run has verified so far, and so what may be timed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from attnproof.harness.model.candidate import Lane
from attnproof.harness.model.case import Case
from attnproof.harness.model.run import OperationResult

_VERIFIED = ("PASS", "DEVIATES")


class Judged(msgspec.Struct, frozen=True):
    """A verdict as a ledger has it."""

    id: str
    """Of the case."""
    failures: list[tuple[str, str, str]] = []
    """Oracle, field and diagnosis of each that no known deviation explains."""
    known: list[tuple[str, str, str, str]] = []
    """The others: the deviation's id, oracle, field and diagnosis."""


@dataclass
class Standing:
    """The verdicts on one candidate's operations, and how each case went."""

    lane: Lane
    results: dict[str, OperationResult]
    judged: dict[str, Judged] = field(default_factory=dict)
    """By the case's id."""

    def bar(self, operation: str, case: Case) -> str:
        """Why the case of the operation may not be timed, "" if it may."""
        result = self.results.get(operation)
        if result is None:
            return "not verified"
        if result.verdict == "NOT OFFERED":
            return f"not offered: {result.reason}" if result.reason else "not offered"
        if result.verdict == "UNVERIFIED":
            return f"not verified: {result.reason}"
        if result.verdict not in _VERIFIED:
            return f"failed verification: {result.reason or f'{result.failed} cases are wrong'}"
        if case.id not in self.judged:
            return "not verified on this workload"
        failures = self.judged[case.id].failures
        return f"failed on this workload: {failures[0][2]}" if failures else ""

    def known(self, case: Case) -> tuple[str, ...]:
        """Ids of the known deviations that show on the case."""
        judged = self.judged.get(case.id)
        return tuple(dict.fromkeys(known[0] for known in judged.known)) if judged else ()

    def known_to_raise(self, case: Case) -> tuple[str, ...]:
        """Ids of those by which the candidate raises an error where it should not."""
        judged = self.judged.get(case.id)
        known = judged.known if judged else ()
        return tuple(dict.fromkeys(one[0] for one in known if one[2].startswith("raises ")))


def read_ledgers(paths: Iterable[Path]) -> dict[str, Judged]:
    """Every verdict by the id of its case."""
    decode = msgspec.json.Decoder(Judged).decode
    judged = {}
    for path in paths:
        with path.open("rb") as lines:
            for line in lines:
                if line.startswith(b'{"event":"verdict"'):
                    read = decode(line)
                    judged[read.id] = read
    return judged
