"""The steps of a sequence on a failure card: changed fields, and the first difference."""

from __future__ import annotations

from typing import NamedTuple

from attnproof.harness.model.run import Finding
from attnproof.harness.report.pictures.difference import FieldPicture, field_picture
from attnproof.harness.report.pictures.sequence_input import finding_steps
from attnproof.harness.report.pictures.sequence_view import StepView, view_sequence
from attnproof.harness.report.pictures.state import state_picture
from attnproof.harness.report.pictures.svg import drawn
from attnproof.harness.report.shared.wording import many, shorten

_PICTURES = 250_000
"""Bytes of all pictures of one sequence; the last steps, nearest to the failure, come first."""
_LABEL = 200
_CODE = 600
_NAMES = 24
_FRAME = 250
"""Approximate bytes of a step's tags."""


class StepCard(NamedTuple):
    """One step on the page."""

    step: StepView
    """The step, with long texts and lists of names shortened."""
    fields: tuple[FieldPicture, ...]
    """Pictures of the wrong fields."""
    state: str
    """Picture of the fields that the step changed."""


class SequenceCard(NamedTuple):
    """The steps that are drawn, and the sentences on those that are not."""

    steps: tuple[StepCard, ...]
    above: str
    below: str
    pictured: bool
    """True if any state is drawn."""

    @property
    def size(self) -> int:
        """Approximate bytes on the page."""
        return sum(map(_size, self.steps))

    def without_pictures(self) -> SequenceCard:
        """Return the steps in words only."""
        return self._replace(
            steps=tuple(
                step._replace(
                    state="", fields=tuple(field._replace(svg="") for field in step.fields)
                )
                for step in self.steps
            ),
            pictured=False,
        )


def build_sequence(finding: Finding, prefix: str) -> SequenceCard | None:
    """Return the steps of a finding, None if it has none."""
    steps = finding_steps(finding)
    if not steps:
        return None
    view = view_sequence(steps, finding.outputs, finding.place)
    left, cards = _PICTURES, []
    for step in reversed(view.steps):
        card = _card(step, f"{prefix}-s{step.number}", left > 0)
        left -= len(card.state) + sum(len(field.svg) for field in card.fields)
        cards.append(card)
    pictured = any(card.state for card in cards)
    return SequenceCard(tuple(reversed(cards)), view.above, view.below, pictured)


def _card(step: StepView, prefix: str, pictured: bool) -> StepCard:
    state = ""
    if pictured:
        state = drawn("the picture of the state", lambda: state_picture(step, f"{prefix}-state"))
    changed = [change.name for change in step.changes] if not pictured else []
    shortened = step._replace(
        label=shorten(step.label, _LABEL),
        code=shorten(step.code, _CODE),
        more_wrong=_few(step.more_wrong),
        more=_few([*changed, *step.more]),
        equal=_few(step.equal),
    )
    fields = tuple(field_picture(wrong, f"{prefix}-{i}") for i, wrong in enumerate(step.wrong))
    return StepCard(shortened, fields, state)


def _size(card: StepCard) -> int:
    step = card.step
    names = (*step.more, *step.more_wrong, *step.equal)
    words = len(step.label) + len(step.code) + sum(len(name) + 15 for name in names)
    pictures = sum(len(field.svg) + 300 for field in card.fields)
    return _FRAME + words + len(card.state) + pictures


def _few(names: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Return the first two dozen names, and the number of the others."""
    if len(names) <= _NAMES:
        return tuple(names)
    return (*names[:_NAMES], many(len(names) - _NAMES, "more field"))
