"""Oracle 6, determinism: equal input gives equal output, in this process and in a new one.

Bug classes: answers cached by the identity of a tensor, a copy to the host that is read
before it has arrived (K21), state kept from an earlier call (K27).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.equality import differences
from attnproof.harness.oracles.late_copies import LateCall
from attnproof.harness.oracles.purity import modified_inputs
from attnproof.harness.oracles.trial import Trial

NAME = "determinism"
CONTRACT = (
    "equal input gives equal output, in this process and in a new one, and also in other words "
    "and without the arguments that have their default"
)
SOURCE_CHANGED = "changes the source of a copy before it has arrived"
DEFAULT = "another result without arguments that have their default"
SHARED = "shares memory with an earlier result"
READ_EARLY = "reads a copy to the host before it has arrived"
FRESH_PROCESS = Failure(
    oracle=NAME,
    field="",
    diagnosis="depends on what was called before",
    message="the same case gives another result in a fresh process",
)


def judge(trial: Trial) -> Iterator[Failure]:
    """Yield a failure for each field that a repeated call, or a call with late copies, changes."""
    again = trial.again
    call, diagnosis = "second call", "not deterministic"
    if again.left_out:
        call, diagnosis = f"without {', '.join(again.left_out)}", DEFAULT
    elif again.restated:
        call, diagnosis = "the same input in other words", again.restated
    if again.error is not None or again.malformed:
        yield Failure(
            oracle=NAME,
            field="",
            diagnosis=DEFAULT if again.left_out else again.restated or "second call fails",
            message=f"{call} on equal input: {again.malformed or repr(again.error)}",
            log=again.log,
        )
        return
    for failure in differences(trial, trial.first.outputs, again.outputs, NAME):
        message = f"{call}: {failure.message}"
        yield msgspec.structs.replace(failure, diagnosis=diagnosis, fits=None, message=message)
    if again.modified and not any(modified_inputs(trial.first, NAME)):
        yield Failure(
            oracle=NAME,
            field="",
            diagnosis="the second call modifies an input",
            message=f"the second call on equal input modifies {again.modified}",
            expected="no write",
            got=again.modified,
        )
    if again.shared:
        yield Failure(
            oracle=NAME,
            field=again.shared,
            diagnosis=SHARED,
            message=f"{call} on equal input: {again.shared} is part of the first result, or in its "
            "memory: what the caller writes there changes later results",
            expected="memory of its own",
            got="that of an earlier result",
        )
    yield from _used_early(trial)


def checks(trial: Trial) -> int:
    """Return the number of repeated calls: one, and one with late copies if it can be judged."""
    return 1 + int(_is_judged(trial.late))


def _used_early(trial: Trial) -> Iterator[Failure]:
    """Yield a failure if late copies would change the result of the call."""
    late = trial.late
    if late is None or not _is_judged(late):
        return
    if late.source_changed:
        yield Failure(
            oracle=NAME,
            field="",
            diagnosis=SOURCE_CHANGED,
            message="the source of a non-blocking copy to the device is written, before anything "
            "waits for the copy: pinned memory is read later",
            expected="a wait for the copy, or another buffer",
            got="neither",
        )
    if late.error is None:
        wrong = next(differences(trial, trial.first.outputs, late.outputs, NAME), None)
        if wrong is None:
            return
        text, place, index = f"then {wrong.message}", wrong.place, wrong.index
    else:
        text, place, index = f"then it raises {late.error!r}"[:300], None, None
    yield Failure(
        oracle=NAME,
        field="",
        diagnosis=READ_EARLY,
        message=f"a non-blocking copy is read at once, before anything waits for it; {text}",
        expected="a wait for the copy",
        got="none",
        place=place,
        index=index,
    )


def _is_judged(late: LateCall | None) -> bool:
    """True if a copy was late, or its source changed, and no wait of the code was left out.

    Code that waits on a GPU only cannot be judged on the CPU.
    """
    if late is None or late.may_wait:
        return False
    return late.copies > 0 or late.source_changed
