"""The part of a sequence that is drawn: its steps and the fields that each changed.

The page and the terminal draw the same part. Up to the first difference both sides agree and
one state is drawn; at the first difference both states are; later states are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from attnproof.harness.model.place import Place
from attnproof.harness.model.run import Difference
from attnproof.harness.report.pictures.changes import Change, change_of, is_blank
from attnproof.harness.report.pictures.difference_view import same

MAX_STEPS = 32
"""Maximum number of steps drawn of a sequence, those around the first difference."""
MAX_FIELDS = 6
"""Maximum number of changed fields drawn of a step."""
MAX_WRONG = 4
"""Maximum number of wrong fields drawn of a step."""
_AFTER = 3
"""Steps drawn after the first difference if not all are drawn."""
_RAISES = "raises"
"""Field of every step with the class of the error that the step raised."""


class StepView(NamedTuple):
    """One step and the state after it."""

    number: int
    """Number of the step, from 1."""
    label: str
    code: str
    failing: bool
    reached: bool
    """True if the state is compared: False after the first difference."""
    raises: str
    """Class of the error that both sides raise, "" for none."""
    wrong: tuple[Difference, ...]
    """Fields that differ, named without the step."""
    more_wrong: tuple[str, ...]
    """Names of further fields that differ: too many to draw, or missing due to an error."""
    changes: tuple[Change, ...]
    """Changes that are the same on both sides."""
    unchanged: bool
    """True if the step changed no compared field."""
    more: tuple[str, ...]
    """Names of changed fields that are not in `changes`."""
    equal: tuple[str, ...]
    """Names of equal fields, for the failing step only."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks after the step's label."""
        raises = f"raises {self.raises}, as expected" if self.raises else ""
        return tuple(filter(None, (raises, "no visible change" if self.unchanged else "")))


class SequenceView(NamedTuple):
    """The steps that are drawn, and the sentences on those that are not."""

    steps: tuple[StepView, ...]
    above: str
    below: str


def view_sequence(
    steps: Sequence[tuple[str, str]], outputs: Sequence[Difference], place: Place | None = None
) -> SequenceView:
    """Choose the steps (label, source) to draw; `place` is the first wrong output."""
    states = states_by_step(outputs)
    failing = failing_step(place, states)
    last = len(steps)
    if last > MAX_STEPS:
        last = min(last, (last if failing is None else failing) + 1 + _AFTER)
    first = max(0, last - MAX_STEPS)
    leading = _leading(place, states.get(-1 if failing is None else failing, {}))
    drawn = tuple(_step(i, steps[i], states, failing, leading) for i in range(first, last))
    return SequenceView(drawn, _left_out(0, first), _left_out(last, len(steps)))


def states_by_step(outputs: Sequence[Difference]) -> dict[int, dict[str, Difference]]:
    """Return the outputs by step (from 0) and field."""
    states: dict[int, dict[str, Difference]] = {}
    for output in outputs:
        if output.step is not None:
            states.setdefault(output.step, {})[output.field] = output
    return states


def failing_step(place: Place | None, states: dict[int, dict[str, Difference]]) -> int | None:
    """Return the step (from 0) of `place`, else the first step that differs."""
    if place is not None and place.step is not None:
        return place.step
    return next(
        (step for step in sorted(states) if not all(d.equal for d in states[step].values())), None
    )


def _leading(place: Place | None, state: dict[str, Difference]) -> list[str]:
    """Return the fields that come first at every step: that of `place`, then other wrong ones."""
    path = place.field if place else ""
    wrong = [name for name, output in state.items() if not output.equal]
    return sorted(wrong, key=lambda name: not path.startswith(name))


def _step(
    index: int,
    step: tuple[str, str],
    states: dict[int, dict[str, Difference]],
    failing: int | None,
    leading: list[str],
) -> StepView:
    reached = failing is None or index <= failing
    state = states.get(index, {}) if reached else {}
    state = {name: state[name] for name in dict.fromkeys([*leading, *state]) if name in state}
    wrong = [
        _with_type_in_words(name, output) for name, output in state.items() if not output.equal
    ]
    # After an unexpected error all other fields are missing: draw the error alone.
    drawn = [output for output in wrong if output.field == _RAISES and output.got] or wrong
    drawn = drawn[:MAX_WRONG]
    changed = list(_changed(state, states.get(index - 1, {}), index == 0))
    raises = state.get(_RAISES)
    return StepView(
        number=index + 1,
        label=step[0],
        code=step[1],
        failing=index == failing,
        reached=reached,
        raises=str(raises.expected) if raises and raises.equal and raises.expected else "",
        wrong=tuple(drawn),
        more_wrong=tuple(output.field for output in wrong if output not in drawn),
        changes=tuple(change_of(*change, index == 0) for change in changed[:MAX_FIELDS]),
        unchanged=bool(state) and not wrong and not changed,
        more=tuple(name for name, *_ in changed[MAX_FIELDS:]),
        equal=_equal(state) if index == failing else (),
    )


def _with_type_in_words(name: str, output: Difference) -> Difference:
    """Describe the type of an error in words."""
    if name != _RAISES:
        return output
    kind = "class of the error, None without one"
    return msgspec.structs.replace(output, expected_type=kind, got_type=kind)


def _equal(state: dict[str, Difference]) -> tuple[str, ...]:
    """Return the names of fields that are equal on both sides, without the error."""
    return tuple(name for name, output in state.items() if output.equal and name != _RAISES)


def _changed(
    state: dict[str, Difference], earlier: dict[str, Difference], first: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, old and new value of each field that the step changed.

    At the first step every field with a value is changed; a removed field becomes None.
    """
    before = {name: output.expected for name, output in earlier.items()}
    for name, output in state.items():
        value = output.expected
        if not output.equal or name == _RAISES:
            continue
        if not (is_blank(value) if first else same(before.get(name), value)):
            yield name, before.get(name), value
    for name in [name for name in before if state and name not in state]:
        if before[name] is not None:
            yield name, before[name], None


def _left_out(first: int, last: int) -> str:
    if first >= last:
        return ""
    if last - first == 1:
        return f"step {last} not drawn"
    return f"steps {first + 1:,} to {last:,} not drawn"
