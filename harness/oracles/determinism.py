"""Oracle 6, determinism: equal input, equal output, in this process and in a fresh one.

Bug classes: answers cached by the identity of a tensor, races that an accidental
synchronisation hides (K21), state kept from an earlier call (K27).
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.model.verdict import Failure
from harness.oracles.equality import differences
from harness.oracles.trial import Trial

NAME = "determinism"
FRESH_PROCESS = Failure(
    oracle=NAME,
    field="",
    diagnosis="depends on what was called before",
    message="the same case gives another result in a fresh process",
)


def judge(trial: Trial) -> Iterator[Failure]:
    """The second call on equal input must give what the first gave."""
    again = trial.again
    if again.error is not None or again.malformed:
        yield Failure(
            oracle=NAME,
            field="",
            diagnosis="second call fails",
            message=f"the second call on equal input: {again.malformed or repr(again.error)}",
            log=again.log,
        )
        return
    for failure in differences(trial, trial.first.outputs, again.outputs, NAME):
        yield Failure(
            oracle=NAME,
            field=failure.field,
            diagnosis="not deterministic",
            message=f"second call: {failure.message}",
            expected=failure.expected,
            got=failure.got,
            where=failure.where,
        )


def checks(_trial: Trial) -> int:
    """One repetition."""
    return 1
