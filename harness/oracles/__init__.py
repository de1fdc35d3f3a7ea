"""The oracles, one module each: a rule that judges a candidate on a case.

`judge` runs them in the order of `attnproof.harness.model.verdict.ORACLES`.
"""

from __future__ import annotations

from attnproof.harness.model.verdict import ORACLES, Failure, Verdict
from attnproof.harness.oracles import (
    consumer,
    cost,
    determinism,
    equality,
    errors,
    invariants,
    padding,
    purity,
    red_zones,
    sequences,
)
from attnproof.harness.oracles.attempt import digest
from attnproof.harness.oracles.oracle import Oracle
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.phases import Phase, counted

_FOR_RESULTS: tuple[Oracle, ...] = (
    determinism,
    equality,
    sequences,
    invariants,
    consumer,
    purity,
    padding,
    red_zones,
    cost,
)
_FOR_ALL: tuple[Oracle, ...] = (errors, *_FOR_RESULTS)
CONTRACTS = {"process": "no crash, no hang, no runaway memory, no output to stdout"} | {
    oracle.NAME: oracle.CONTRACT for oracle in _FOR_ALL
}
"""Requirement of each oracle in a clause, in the order of judgement."""


@counted(Phase.JUDGE)
def judge(trial: Trial, *, digested: bool = False, repeated: bool = True) -> Verdict:
    """Return the verdict of the oracles on one case.

    `digested` adds a hash of the outputs. Without `repeated` the oracle determinism, which
    repeats the call, is left out; the oracle padding if the trial leaves out its call.
    """
    counts = dict.fromkeys(ORACLES, 0)
    counts[errors.NAME] = errors.checks(trial)
    failures = _failures_without_result(trial)
    if trial.case.fault or failures:
        return Verdict(tuple(failures), tuple(counts.values()))
    broken: list[Exception] = []
    for oracle in _FOR_RESULTS:
        if (oracle is determinism and not repeated) or (oracle is padding and not trial.poisons):
            continue
        try:
            failures.extend(oracle.judge(trial))
        except Exception as error:  # outputs of another kind than the oracle reads
            broken.append(error)
        counts[oracle.NAME] = oracle.checks(trial)
    if broken and not failures:
        raise broken[0]
    hashed = digest(trial.first.outputs) if digested and not failures else ""
    return Verdict(tuple(failures), tuple(counts.values()), hashed)


def call_once(trial: Trial) -> Verdict:
    """Return the digest of one call's outputs, or its failure if there are no outputs."""
    failures = _failures_without_result(trial)
    hashed = "" if trial.case.fault or failures else digest(trial.first.outputs)
    return Verdict(tuple(failures), (0,) * len(ORACLES), hashed)


def _failures_without_result(trial: Trial) -> list[Failure]:
    """Return the failures after which there are no outputs to judge."""
    failures = list(errors.judge(trial))
    if not failures and not trial.case.fault and trial.first.malformed:
        _ = trial.expected  # raises too if the harness cannot read the reference's result
        failures = [_malformed(trial)]
    return failures


def _malformed(trial: Trial) -> Failure:
    return Failure(
        oracle=equality.NAME,
        field="result",
        diagnosis="result of another type",
        message=f"the result cannot be read: {trial.first.malformed}",
        expected=f"what {trial.operation.specification} returns",
        got=trial.first.malformed,
    )
