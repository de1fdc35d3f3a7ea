"""Oracle 5, red zones: no memory beside an input, a buffer or an output is written.

Bug classes: a kernel tile without a mask, a page column beyond the row (K5), slot -1
as an index (K16). The outputs are often right nevertheless.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnproof.harness.model.place import Place
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.trial import Trial

NAME = "red zones"
CONTRACT = "no memory beside an input, a buffer or an output is written"


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each changed guard word of inputs, `out=` buffers and allocations."""
    for attempt in trial.guarded:
        call = attempt.call
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
        if attempt.stray_writes:
            yield Failure(
                oracle=NAME,
                field="",
                diagnosis="stray write",
                message="guard words of the candidate's own allocations were overwritten "
                f"({attempt.stray_writes} of them)",
            )


def checks(trial: Trial) -> int:
    """Return the number of calls checked, none without memory to guard."""
    tensors = any(isinstance(value, torch.Tensor) for value in trial.first.outputs.values())
    return len(trial.guarded) if trial.first.call.arena or tensors else 0
