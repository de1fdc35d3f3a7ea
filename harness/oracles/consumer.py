"""Oracle 8, consumer: a kernel that uses the outputs reads and writes the required cache slots.

Bug classes: a mistake that reference and candidate share, which equality cannot detect;
lengths that are consistent with each other and wrong (K3), the wrong block, slot or chunk of
the right sequence (K8, K14), a view that cuts keys or tokens in the wrong place (K25).

No reference is used. The required slots of each query token are computed from the numbers of
the batch, the actual ones from the outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.model.place import place_of
from attnproof.harness.model.verdict import CONSUMER, Failure
from attnproof.harness.oracles.invariants import violations_of
from attnproof.harness.oracles.trial import Trial

NAME = CONSUMER
CONTRACT = "a kernel that uses the outputs reads and writes the cache slots that the batch requires"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each way in which a kernel would read or write other slots."""
    if trial.operation.contract.consume is None:
        return
    for violation in violations_of(trial, trial.operation.contract.consume):
        place = place_of(violation.field)
        yield Failure(
            oracle=NAME,
            field=place.root,
            diagnosis=violation.text,
            message=violation.detail or f"{violation.field} {violation.text}",
            place=place,
        )


def checks(trial: Trial) -> int:
    """Return 1 if the operation has outputs that a kernel uses, otherwise 0."""
    return int(trial.operation.contract.consume is not None)
