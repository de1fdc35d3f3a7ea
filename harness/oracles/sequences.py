"""Oracle 7, sequences: after every step the observable state equals the reference's.

Bug classes: rows that are views of each other when they are swapped (K12), rows and
buffers that keep an earlier request's state (K13, K17, K18), a cached result (K27), a
state that an exception leaves half changed (K28).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from attnproof.harness.model.place import Place
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.equality import differences
from attnproof.harness.oracles.trial import Trial

NAME = "sequences"
CONTRACT = "after every step the observable state equals the reference's"
_RAISES = Place("raises", step=0).root


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each field that differs after the first wrong step.

    If the raised error differs, yield only that: other differences follow from it. So they do
    from the first one where outputs are in that order (`Contract.causes_first`).
    """
    script = trial.operation.call.script(trial.case)
    if script is None:
        return
    failures = list(differences(trial, trial.expected, trial.first.outputs, NAME))
    if any(failure.field == _RAISES for failure in failures):
        failures = [failure for failure in failures if failure.field == _RAISES]
    elif trial.operation.contract.causes_first:
        failures = failures[:1]
    for failure in failures:
        step = failure.place.step if failure.place else None
        assert step is not None  # every output of a sequence belongs to a step
        yield msgspec.structs.replace(
            failure,
            message=f"after step {step + 1} ({script.lines[step].label}): {failure.message}",
            log=trial.first.log,
        )


def checks(trial: Trial) -> int:
    """Return the number of steps of the sequence."""
    script = trial.operation.call.script(trial.case)
    return len(script.lines) if script else 0
