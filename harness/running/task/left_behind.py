"""The failure of a candidate whose processes go on when its own process has ended."""

from __future__ import annotations

from collections.abc import Sequence

from attnproof.harness.model.verdict import PROCESS, Failure
from attnproof.harness.running.task.certainty import LEFT_BEHIND

_MOST_CHARACTERS = 300


def left_behind(survivors: Sequence[str]) -> Failure:
    """Return the failure; `survivors` are the command lines of the processes."""
    names = ", ".join(dict.fromkeys(survivors))[:_MOST_CHARACTERS]
    return Failure(
        oracle=PROCESS,
        field=LEFT_BEHIND,
        diagnosis=LEFT_BEHIND,
        message=f"the candidate {LEFT_BEHIND}, which the harness ended: {names}",
        expected="no process of the candidate runs when its own process has ended",
        got=names,
    )
