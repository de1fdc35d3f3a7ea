"""Oracle 5, red zones: nothing is written beside an input, a buffer or an output.

Bug classes: a kernel tile without a mask, a page column beyond the row (K5), slot -1
as an index (K16); the answer is often right all the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnproof.harness.model.place import Place
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.trial import Trial

NAME = "red zones"
CONTRACT = "nothing is written beside an input, a buffer or an output"


def judge(trial: Trial) -> Iterator[Failure]:
    """Guard words around inputs, `out=` buffers and the candidate's own allocations."""
    for made in (trial.first, trial.poisoned):
        call = made.call
        for intrusion in call.arena.unexpected_writes(call.written) if call.arena else ():
            if not intrusion.inside:
                yield Failure(
                    oracle=NAME,
                    field=intrusion.name,
                    diagnosis="stray write",
                    message=f"a word beside {intrusion.name} was overwritten "
                    f"({intrusion.word} words from its start)",
                    place=Place(intrusion.name),
                )
        if made.stray_writes:
            yield Failure(
                oracle=NAME,
                field="",
                diagnosis="stray write",
                message="guard words of the candidate's own allocations were overwritten "
                f"({made.stray_writes} of them)",
            )


def checks(trial: Trial) -> int:
    """Two calls looked at, where there is memory to guard."""
    tensors = any(isinstance(value, torch.Tensor) for value in trial.first.outputs.values())
    return 2 if trial.first.call.arena or tensors else 0
