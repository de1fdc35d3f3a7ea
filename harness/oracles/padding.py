"""Oracle 4, padding and poison: no result depends on what is stale (SPEC.md rule 0.4).

Bug classes: padded rows that hold earlier requests' state (K13), stale block ids in
the tail of a longer row (K18), buffers that start at 0, a valid slot (K17).
"""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.equality import differences
from attnproof.harness.oracles.trial import Trial

NAME = "padding"
CONTRACT = "no result depends on what is stale (SPEC.md rule 0.4)"


def judge(trial: Trial) -> Iterator[Failure]:
    """The candidate on the other garbage must still agree with the reference.

    Stale input is copied to stale output by both sides alike; everything else of
    the reference is the same for both patterns, so any difference is a stale read.
    """
    made = trial.poisoned
    if made.error is not None or made.malformed:
        yield Failure(
            oracle=NAME,
            field="",
            diagnosis="depends on stale entries",
            message=f"with other garbage in stale places: {made.malformed or repr(made.error)}",
            log=made.log,
        )
        return
    failures = list(differences(trial, trial.expected_poisoned, made.outputs, NAME))
    if not failures:
        return
    plainly_wrong = {f.field for f in differences(trial, trial.expected, trial.first.outputs, NAME)}
    for failure in failures:
        if failure.field in plainly_wrong:
            continue
        yield Failure(
            oracle=NAME,
            field=failure.field,
            diagnosis=f"depends on stale entries ({failure.diagnosis})",
            message=failure.message,
            expected=failure.expected,
            got=failure.got,
            place=failure.place,
            index=failure.index,
        )


def checks(trial: Trial) -> int:
    """Fields compared."""
    return len(trial.poisoned.outputs)
