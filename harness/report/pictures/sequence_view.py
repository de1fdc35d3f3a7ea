"""What of a sequence is drawn: its steps, and what each of them changed in the state.

The same choice for the page and the terminal. Up to the first difference both sides
agree, so one state is shown; there both are; what comes later follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from attnproof.harness.model.run import Difference
from attnproof.harness.report.pictures.changes import Change, change_of, is_blank
from attnproof.harness.report.pictures.difference_view import same

MAX_STEPS = 32
"""Steps drawn of a sequence, those around the first difference."""
MAX_FIELDS = 6
"""Changed fields drawn of a step."""
MAX_WRONG = 4
"""Wrong fields drawn of a step."""
_AFTER = 3
"""Steps drawn behind the first difference when not all are."""
_OF_STEP = re.compile(r"\[(\d+)\]\.(.*)", re.DOTALL)
_RAISES = "raises"
"""The field of every step that holds the class of the error it got."""


class StepView(NamedTuple):
    """One step and the state after it."""

    number: int
    """From 1, as people count."""
    label: str
    code: str
    failing: bool
    reached: bool
    """Whether its state is compared: False for all behind the first difference."""
    raises: str
    """Class of the error that it gets on both sides, "" for none."""
    wrong: tuple[Difference, ...]
    """Fields that differ, under their name without the step."""
    more_wrong: tuple[str, ...]
    """Fields that differ and are not in `wrong`: too many, or lost with an error."""
    changes: tuple[Change, ...]
    """What both sides changed alike."""
    unchanged: bool
    """Whether the step changed nothing that is looked at."""
    more: tuple[str, ...]
    """Changed fields that are not in `changes`."""
    equal: tuple[str, ...]
    """Of the failing step: fields that are equal on both sides."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """What is said of it behind its label."""
        raises = f"raises {self.raises}, as it must" if self.raises else ""
        return tuple(filter(None, (raises, "no visible change" if self.unchanged else "")))


class SequenceView(NamedTuple):
    """The steps that are drawn, and what is said of the rest."""

    steps: tuple[StepView, ...]
    above: str
    below: str


def view_sequence(
    steps: Sequence[tuple[str, str]], outputs: Sequence[Difference], field: str = ""
) -> SequenceView:
    """Choose what to draw of `steps` (label, source); `field` is the first wrong one."""
    states = states_by_step(outputs)
    failing = failing_step(field, states)
    last = len(steps)
    if last > MAX_STEPS:
        last = min(last, (last if failing is None else failing) + 1 + _AFTER)
    first = max(0, last - MAX_STEPS)
    leading = _leading(field, states.get(-1 if failing is None else failing, {}))
    drawn = tuple(_step(i, steps[i], states, failing, leading) for i in range(first, last))
    return SequenceView(drawn, _left_out(0, first), _left_out(last, len(steps)))


def states_by_step(outputs: Sequence[Difference]) -> dict[int, dict[str, Difference]]:
    """The outputs by step, each under its name without the step."""
    states: dict[int, dict[str, Difference]] = {}
    for output in outputs:
        if found := _OF_STEP.fullmatch(output.field):
            states.setdefault(int(found[1]), {})[found[2]] = output
    return states


def failing_step(field: str, states: dict[int, dict[str, Difference]]) -> int | None:
    """The step that the finding names, else the first that differs."""
    if found := _OF_STEP.match(field):
        return int(found[1])
    return next(
        (step for step in sorted(states) if not all(d.equal for d in states[step].values())), None
    )


def _leading(field: str, state: dict[str, Difference]) -> list[str]:
    """What goes wrong in the end is shown first at every step, the finding's field before all."""
    found = _OF_STEP.match(field)
    path = found[2] if found else ""
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
    wrong = [_named(name, output) for name, output in state.items() if not output.equal]
    # An error that should not be takes the rest with it: it alone is worth a picture.
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


def _named(name: str, output: Difference) -> Difference:
    """The field under its name without the step; an error and none are no matter of types."""
    if name != _RAISES:
        return msgspec.structs.replace(output, field=name)
    kind = "class of the error, None without one"
    return msgspec.structs.replace(output, field=name, expected_type=kind, got_type=kind)


def _equal(state: dict[str, Difference]) -> tuple[str, ...]:
    """Fields that are equal on both sides; that neither raised is not worth a word."""
    return tuple(name for name, output in state.items() if output.equal and name != _RAISES)


def _changed(
    state: dict[str, Difference], earlier: dict[str, Difference], first: bool
) -> Iterator[tuple[str, Any, Any]]:
    """Fields with another value than after the step before: name, before and after.

    At the first step those that have any value; a field that is there no more becomes None.
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
