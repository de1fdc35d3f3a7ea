"""Failure cards: what the page shows of each finding, within a budget of bytes."""

from __future__ import annotations

from typing import Any, NamedTuple

from harness.model.run import Difference, Finding

from .batch_view import batch_facts, batch_size
from .difference_picture import difference_picture
from .difference_view import view_difference
from .focus import find_focus, find_marks
from .literal import case_literal, example_line
from .pictures import batch_picture
from .wording import middle_out, shorten

BUDGET = 3_000_000
"""Bytes of all pictures, literals and logs: the page stays under 5 MB."""
_FIELDS = 4
"""Wrong fields drawn on a card."""
_LITERAL = 20_000
_LOG = 8_000
_SENTENCE = 1_200
_SHORT_LITERAL = 16
"""Lines of a literal that is shown unfolded."""


class FieldPicture(NamedTuple):
    """One wrong field, drawn."""

    name: str
    sentence: str
    types: str
    svg: str


class Card(NamedTuple):
    """One finding as the page shows it; empty strings and tuples are left out."""

    number: int
    finding: Finding
    message: str
    expected: str
    got: str
    size: str
    source: str
    fields: tuple[FieldPicture, ...]
    more_fields: tuple[str, ...]
    """Wrong fields that are not drawn."""
    equal_fields: tuple[str, ...]
    batch: str
    facts: str
    params: tuple[tuple[str, str], ...]
    literal: str
    literal_open: bool
    example: str
    log: str
    left_out: tuple[str, ...]
    """What would make the page too big."""


class _Budget:
    """Gives bytes away until none are left."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, size: int) -> bool:
        """Whether `size` bytes still fit; if so they are spent."""
        if size > self.left:
            return False
        self.left -= size
        return True


def build_cards(findings: list[Finding], budget: int = BUDGET) -> list[Card]:
    """One card a finding, in order; the first ones get the pictures when not all fit."""
    purse = _Budget(budget)
    return [_card(number, finding, purse) for number, finding in enumerate(findings, 1)]


def _card(number: int, finding: Finding, purse: _Budget) -> Card:
    left_out = []
    wrong = [difference for difference in finding.outputs if not difference.equal]
    fields = tuple(_field(d, f"f{number}-{i}") for i, d in enumerate(wrong[:_FIELDS]))
    batch = _batch(finding, wrong, f"f{number}")
    if not purse.take(len(batch) + sum(len(field.svg) for field in fields)):
        left_out.append("pictures")
        batch, fields = "", tuple(field._replace(svg="") for field in fields)
    literal, example = case_literal(finding.case), example_line(finding.case)
    if len(literal) > _LITERAL or not purse.take(len(literal) + len(example)):
        left_out.append("literal of the input")
        literal = example = ""
    log = middle_out(finding.log, _LOG)
    if not purse.take(len(log)):
        left_out.append("log")
        log = ""
    return Card(
        number=number,
        finding=finding,
        message=shorten(finding.message, _SENTENCE),
        expected=shorten(finding.expected, _SENTENCE),
        got=shorten(finding.got, _SENTENCE),
        size=size_sentence(finding),
        source=_source(finding),
        fields=fields,
        more_fields=tuple(difference.field for difference in wrong[_FIELDS:]),
        equal_fields=tuple(d.field for d in finding.outputs if d.equal),
        batch=batch,
        facts=batch_facts(finding.case.batch) if finding.case.batch else "",
        params=_params(finding),
        literal=literal,
        literal_open=literal.count("\n") < _SHORT_LITERAL,
        example=example,
        log=log,
        left_out=tuple(left_out),
    )


def size_sentence(finding: Finding) -> str:
    """The input's size before and after shrinking."""
    if finding.case.batch is None:
        return "no batch"
    after = batch_size(finding.requests, finding.tokens)
    before = batch_size(finding.requests_before, finding.tokens_before)
    if before == after:
        return f"{after}; it was found at this size"
    return f"{after}, shrunk from {before}"


def _source(finding: Finding) -> str:
    return f"{finding.origin} ({finding.source})" if finding.source else finding.origin


def _field(difference: Difference, prefix: str) -> FieldPicture:
    view = view_difference(difference, 80)
    types = difference.expected_type
    if difference.expected_type != difference.got_type:
        types = f"expected {difference.expected_type}, got {difference.got_type}"
    return FieldPicture(
        difference.field, view.sentence, types, difference_picture(difference, prefix)
    )


def _batch(finding: Finding, wrong: list[Difference], prefix: str) -> str:
    case = finding.case
    if case.batch is None:
        return ""
    return batch_picture(case.batch, prefix, find_focus(case, wrong), find_marks(case))


def _params(finding: Finding) -> tuple[tuple[str, str], ...]:
    """The case's other arguments, and what was spoilt."""
    pairs: list[tuple[str, Any]] = list(finding.case.params.items())
    shown = [(name, shorten(repr(value), 200)) for name, value in pairs]
    return (*shown, ("fault", finding.case.fault)) if finding.case.fault else tuple(shown)
