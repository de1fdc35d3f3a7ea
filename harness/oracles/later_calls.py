"""Oracle 6, determinism, part 2: a later call on other input leaves earlier results alone.

Bug classes: results in one buffer that every call hands out (vllm-ascend#3572), values that are
read when the caller looks at them, a cache whose key leaves out a part of the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from attnproof.harness.model.place import Place, by_place
from attnproof.harness.model.verdict import Failure
from attnproof.harness.oracles.attempt import Attempt
from attnproof.harness.oracles.determinism import NAME
from attnproof.harness.oracles.equality import (
    differences,
    element,
    first_difference,
    same,
)
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.oracles.value_text import brief

CHANGED = "changed by a later call"
DEPENDS = "depends on the call before"


class Overwritten(NamedTuple):
    """A result that a later call has changed."""

    place: Place
    text: str
    """Sentence: the first changed element, before and after."""
    before: str
    after: str


class Kept:
    """The results of a call, with a copy of their values."""

    def __init__(self, trial: Trial) -> None:
        self._operation, self._attempt = trial.operation, trial.first
        self._before = {place: copied(value) for place, value in self._attempt.outputs.items()}

    def overwritten(self) -> Overwritten | None:
        """Return the first result that is not what it was, None if all are."""
        now = self._attempt.outputs
        return first_change(self._before, now) or first_change(self._before, self._read())

    def _read(self) -> dict[Place, Any]:
        """Return the outputs, read once more from the object that the call returned."""
        attempt: Attempt = self._attempt
        if attempt.result is None:  # the results are arguments, whose memory calls may share
            return attempt.outputs
        try:
            return by_place(self._operation.call.outputs(attempt.call, attempt.result))
        except Exception:  # a result that can be read once only
            return attempt.outputs


def judge(trial: Trial, overwritten: Overwritten | None, earlier: str) -> Iterator[Failure]:
    """Yield a failure for a changed result of the call before, and for each wrong one of this.

    `trial` is that of the later call, `earlier` the id of the case before.
    """
    if overwritten is not None:
        yield changed(
            overwritten, diagnosis=CHANGED, words="a later call, on other input, changes the result"
        )
        return
    attempt = trial.first
    if attempt.error is not None or attempt.malformed:
        yield Failure(
            oracle=NAME,
            field="",
            diagnosis=DEPENDS,
            message=f"the call after that on case {earlier}: "
            f"{attempt.malformed or repr(attempt.error)}",
            log=attempt.log,
        )
        return
    for failure in differences(trial, trial.expected, attempt.outputs, NAME):
        message = f"in the call after that on case {earlier}: {failure.message}"
        yield msgspec.structs.replace(failure, diagnosis=DEPENDS, fits=None, message=message)


def changed(overwritten: Overwritten, diagnosis: str, words: str) -> Failure:
    """Return the failure of a changed result; `words` begin its message."""
    return Failure(
        oracle=NAME,
        field=overwritten.place.root,
        diagnosis=diagnosis,
        message=f"{words}: {overwritten.text}",
        expected=overwritten.before,
        got=overwritten.after,
        place=overwritten.place,
    )


def first_change(before: dict[Place, Any], now: dict[Place, Any]) -> Overwritten | None:
    """Return the first result that is not what it was, None if all are."""
    for place, old in before.items():
        new = now.get(place)
        if _equal(old, new):
            continue
        index = first_difference(old, new)
        where = f"{place}{'' if index is None else list(index)}"
        text = f"{where} was {element(old, index)} and is now {element(new, index)}"
        return Overwritten(place, text[:300], brief(old), brief(new))
    return None


def _equal(old: Any, new: Any) -> bool:
    try:
        return same(old, new)
    except Exception:  # an object of the candidate that cannot be compared
        return True


def copied(value: Any) -> Any:
    """Return a value that later writes to its memory do not change."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    return list(value) if isinstance(value, list) else value
