"""Oracle 7, sequences: after every step what a program sees is what the reference leaves.

Bug classes: rows that are views of each other when they are swapped (K12), rows and
buffers that keep an earlier request's state (K13, K17, K18), a cached answer (K27), a
state that an exception leaves half changed (K28).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.equality import differences
from attnproof.harness.oracles.trial import Trial

NAME = "sequences"


def judge(trial: Trial) -> Iterator[Failure]:
    """What differs after the first step at which anything does.

    Where that is the error, the rest of the step follows from it.
    """
    if trial.operation.sequence is None:
        return
    script = trial.first.call.args[0]
    failures = list(differences(trial, trial.expected, trial.first.outputs, NAME))
    if any(failure.field == "[].raises" for failure in failures):
        failures = [failure for failure in failures if failure.field == "[].raises"]
    for failure in failures:
        step = int(failure.where[1 : failure.where.index("]")])
        yield msgspec.structs.replace(
            failure,
            message=f"after step {step + 1} ({script.lines[step].label}): {failure.message}",
            log=trial.first.log,
        )


def checks(trial: Trial) -> int:
    """Steps of the sequence."""
    return len(trial.first.call.args[0].lines) if trial.operation.sequence else 0
