"""Oracle 8, consumer: a kernel that trusts the outputs sees what the batch says it must.

Bug classes: a mistake that reference and candidate share, so that equality sees nothing;
lengths that are consistent with each other and wrong (K3), a block, slot or chunk of one's
own sequence that is not the one (K8, K14), a view that cuts keys or tokens in the wrong
place (K25).

The reference is not looked at. The batch in numbers says which cache slots each query
token must see and where its own key must lie; the outputs say which it does.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnproof.harness.model.place import place_of
from attnproof.harness.model.verdict import CONSUMER, Failure
from attnproof.harness.oracles.invariants import stated
from attnproof.harness.oracles.trial import Trial

NAME = CONSUMER
CONTRACT = "a kernel that trusts the outputs sees what the batch says it must"


def judge(trial: Trial) -> Iterator[Failure]:
    """One failure for each way in which a kernel would see, read or write something else."""
    if trial.operation.contract.consume is None:
        return
    for violation in stated(trial, trial.operation.contract.consume):
        place = place_of(violation.field)
        yield Failure(
            oracle=NAME,
            field=place.root,
            diagnosis=violation.text,
            message=violation.detail or f"{violation.field} {violation.text}",
            place=place,
        )


def checks(trial: Trial) -> int:
    """One judgement of everything that the outputs make a kernel see, if they do."""
    return int(trial.operation.contract.consume is not None)
