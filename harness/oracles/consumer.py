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

from attnproof.harness.model.verdict import CONSUMER, Failure
from attnproof.harness.oracles.invariants import stated
from attnproof.harness.oracles.trial import Trial, field_root

NAME = CONSUMER


def judge(trial: Trial) -> Iterator[Failure]:
    """One failure for each way in which a kernel would see, read or write something else."""
    if trial.operation.consume is None:
        return
    for breach in stated(trial, trial.operation.consume):
        yield Failure(
            oracle=NAME,
            field=field_root(breach.field),
            diagnosis=breach.text,
            message=breach.detail or f"{breach.field} {breach.text}",
            where=breach.field,
        )


def checks(trial: Trial) -> int:
    """One judgement of everything that the outputs make a kernel see, if they do."""
    return int(trial.operation.consume is not None)
