"""Plant a mutation, run the harness on it and compare with the catalogue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from attnproof import optimized, reference
from attnproof.harness.model.candidate import OPTIMIZED, Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.model.verdict import ENGINE, Failure, Kind
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.task.task import Outcome, examine
from attnproof.harness.running.task.workers import Worker
from attnproof.harness.strength.mutation import SIDES, Mutation, Side

_SHRINK_SECONDS = 300.0
"""Time limit that shrinking does not reach: the catalogue names the size of shrunk cases."""
_PLANTED = {"one": "planted in the candidate", "both": "planted on both sides"}


class Found(NamedTuple):
    """Diagnosis and size of a finding, to compare with the catalogue."""

    diagnosis: str
    message: str
    requests: int
    tokens: int
    steps: int
    kind: Kind
    is_named: bool = True
    """False if the heading says what is seen, as no known mistake explains the cases alone."""


class Result(NamedTuple):
    """Oracles that objected to a planted mutation, and its findings."""

    mutation: Mutation
    objecting: dict[Side, set[str]]
    """Oracles that object, by side."""
    findings: list[Found]
    cases: int
    """Cases judged on the examined side."""

    def differences(self) -> list[str]:
        """Return a sentence for each difference from the catalogue."""
        texts = [] if self.findings else [f"not found in {self.cases} cases"]
        for side, objecting in self.objecting.items():
            expected, where = set(getattr(self.mutation, side)), _PLANTED[side]
            missing = expected - objecting
            surplus = objecting - expected if side == "both" else set()
            texts += [f"{where}: {name} does not object" for name in sorted(missing)]
            texts += [f"{where}: {name} objects too" for name in sorted(surplus)]
        judged = any(f.kind in ENGINE for f in self.findings)
        if self.findings and judged == bool(self.mutation.strict):
            texts.append(f"{'found' if judged else 'not found'} under the engine contract")
        for finding in self.findings:
            if finding.is_named and not finding.diagnosis.startswith(self.mutation.diagnoses):
                texts.append(f"another diagnosis: {finding.message}")
            for name in ("requests", "tokens", "steps"):
                size, most = getattr(finding, name), getattr(self.mutation, name)
                if size > most:
                    texts.append(f"{size} {name} in the shrunk case, expected at most {most}")
        return texts


@contextmanager
def planted(mutation: Mutation, side: Side) -> Iterator[Candidate]:
    """Plant the mutation and yield the candidate to run.

    On both sides `reference` and `optimized` are changed in this process and its forks.
    """
    if side == "one":
        yield Candidate(mutation.id, mutation.target)
        return
    right = {package: getattr(package, mutation.part) for package in (reference, optimized)}
    try:
        for package, part in right.items():
            setattr(package, mutation.part, mutation.wrong(part))
        yield Candidate("optimized", OPTIMIZED)
    finally:
        for package, part in right.items():
            setattr(package, mutation.part, part)


def run(mutation: Mutation, ledger: Path) -> Result:
    """Examine the mutation on one side; judge the shrunk cases and the boundary on the other."""
    boundaries = ALL[mutation.operation].inputs.boundaries()
    cases = [case for name, case in boundaries if name == mutation.boundary]
    objecting: dict[Side, set[str]] = {}
    findings: list[Found] = []
    judged = len(cases)
    if mutation.examined:
        outcome = _examine(mutation, mutation.examined, ledger)
        oracles = outcome.result.oracles.items()
        objecting[mutation.examined] = {name for name, count in oracles if count.failed}
        findings = [
            Found(
                f.diagnosis,
                f.message,
                f.requests,
                f.tokens,
                len(f.steps),
                f.kind,
                is_named=f.has_known_mistake and not f.diagnosis.startswith(f"{f.field} is wrong"),
            )
            for f in outcome.findings
        ]
        cases += [finding.case for finding in outcome.findings]
        judged = outcome.result.cases
    for side in SIDES:
        if side == mutation.examined or getattr(mutation, side) is None:
            continue
        failures = judge(mutation, side, cases)
        objecting[side] = {failure.oracle for failure in failures}
        if failures and not mutation.examined:
            sizes = (cases[0].num_requests, cases[0].num_tokens, cases[0].num_steps)
            first = failures[0]
            findings = [Found(first.diagnosis, first.message, *sizes, first.kind)]
    return Result(mutation, objecting, findings, judged)


def _examine(mutation: Mutation, side: Side, ledger: Path) -> Outcome:
    # Without critical sizes: the mutation names the diagnosis and the size of plain cases.
    settings = Settings(
        examples_db="",
        examples=mutation.examples,
        vary=False,
        shrink_seconds=_SHRINK_SECONDS,
    )
    with planted(mutation, side) as candidate:
        return examine(ALL[mutation.operation], candidate, settings, [], [], ledger)


def judge(mutation: Mutation, side: Side, cases: list[Case]) -> list[Failure]:
    """Return the failures of all oracles on these cases of a planted mutation."""
    operation, settings = ALL[mutation.operation], Settings()
    with planted(mutation, side) as candidate:
        worker = Worker(
            candidate,
            {operation.name: operation},
            timeout_s=settings.timeout_s,
            memory_bytes=settings.memory_bytes,
        )
        try:
            return [failure for case in cases for failure in worker.judge(case).failures]
        finally:
            worker.stop()
