"""Oracle 4, padding and poison: no result depends on stale data (SPEC.md rule 0.4).

Bug classes: padded rows that hold earlier requests' state (K13), stale block ids in
the tail of a longer row (K18), buffers that start at 0, a valid slot (K17).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from attnproof.harness.model.verdict import OVERFLOW, Failure, Kind
from attnproof.harness.oracles.equality import differences
from attnproof.harness.oracles.trial import Trial

NAME = "padding"
CONTRACT = "no result depends on stale data (SPEC.md rule 0.4)"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each field that is wrong with the other poison pattern only.

    Candidate and reference both copy stale input to stale output. The reference's other
    results are equal for both patterns, so any difference is a read of stale data.
    """
    attempt = trial.poisoned
    if attempt.error is not None or attempt.malformed:
        yield Failure(
            oracle=NAME,
            field="",
            diagnosis="depends on stale entries",
            message=f"with the other poison pattern: {attempt.malformed or repr(attempt.error)}",
            log=attempt.log,
        )
        return
    failures = list(differences(trial, trial.expected_poisoned, attempt.outputs, NAME, attempt))
    if not failures:
        return
    always_wrong = {f.field for f in differences(trial, trial.expected, trial.first.outputs, NAME)}
    for failure in failures:
        if failure.field in always_wrong:
            continue
        if failure.diagnosis == OVERFLOW:  # the other pattern gives blocks higher ids
            yield msgspec.structs.replace(failure, other_kind=Kind.WRONG_RESULT)
            continue
        diagnosis = f"depends on stale entries ({failure.diagnosis})"
        yield msgspec.structs.replace(failure, diagnosis=diagnosis, fits=None)


def checks(trial: Trial) -> int:
    """Return the number of fields compared."""
    return len(trial.poisoned.outputs)
