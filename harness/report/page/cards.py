"""Failure cards: the parts of each finding on the page, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import structs

from attnproof.harness.escaping import escape_line
from attnproof.harness.guard import attempt
from attnproof.harness.model.run import Difference, Finding
from attnproof.harness.report.page.sequence_card import SequenceCard, build_sequence
from attnproof.harness.report.pictures.batch import batch_picture
from attnproof.harness.report.pictures.batch_view import batch_facts, batch_size
from attnproof.harness.report.pictures.difference import FieldPicture, field_picture
from attnproof.harness.report.pictures.focus import find_focus, find_marks
from attnproof.harness.report.pictures.sequence_input import step_count
from attnproof.harness.report.pictures.svg import drawn
from attnproof.harness.report.shared.consequences import consequence
from attnproof.harness.report.shared.literal import case_literal, example_line
from attnproof.harness.report.shared.parameters import meanings
from attnproof.harness.report.shared.wording import many, middle_out, shared_mistake, shorten

BUDGET = 3_000_000
"""Bytes of all pictures, literals and logs: the page stays under 5 MB."""
KNOWN_BUDGET = 1_000_000
"""Bytes for the cards of known deviations, separate from the budget of the findings."""
_FIELDS = 4
"""Maximum number of wrong fields drawn on a card."""
_LITERAL = 20_000
_LOG = 8_000
_SENTENCE = 1_200
_SHORT_LITERAL = 16
"""Lines from which a literal is folded."""


class Card(NamedTuple):
    """One finding on the page; empty strings and tuples are left out."""

    label: str
    """Label such as "F1"; its lower case is the prefix of the card's ids."""
    finding: Finding
    message: str
    expected: str
    got: str
    size: str
    source: str
    consequence: str = ""
    """Consequence of the mistake for an engine, a sentence; "" without one."""
    fields: tuple[FieldPicture, ...] = ()
    more_fields: tuple[str, ...] = ()
    """Names of the wrong fields that are not drawn."""
    equal_fields: tuple[str, ...] = ()
    shared: str = ""
    """Sentence if the reference has the same mistake, "" otherwise."""
    sequence: SequenceCard | None = None
    """The steps with their wrong fields; None for a single call."""
    after: str = ""
    """Place in a sequence, such as "after step 3"; "" for a single call."""
    batch: str = ""
    facts: str = ""
    params: tuple[tuple[str, str, str], ...] = ()
    """Name, value and meaning of each other argument of the case."""
    arguments: str = ""
    """A line on each argument of the call."""
    literal: str = ""
    literal_open: bool = False
    example: str = ""
    """The `@example` line; "" for a sequence, as state machines take no examples."""
    snippet: str = ""
    """Program that shows the mistake."""
    log: str = ""
    left_out: tuple[str, ...] = ()
    """Names of the parts left out to keep the page small."""


class _Budget:
    """Bytes left for all cards, and the parts that the current card leaves out."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.left_out: list[str] = []

    def take(self, size: int, name: str) -> bool:
        """True if `size` bytes still fit; they are then taken from the budget."""
        if size > self.left:
            self.left_out.append(name)
            return False
        self.left -= size
        return True

    def keep(self, text: str, name: str, limit: int = _LITERAL) -> str:
        """Return the text, or "" if it is too long for the limit or the budget."""
        if len(text) > limit:
            self.left_out.append(name)
            return ""
        return text if self.take(len(text), name) else ""


def build_cards(findings: list[Finding], budget: int = BUDGET) -> list[Card]:
    """Return one card per finding, in order; the first ones have pictures if not all fit."""
    room = _Budget(budget)
    return [_guarded(f"F{number}", finding, room) for number, finding in enumerate(findings, 1)]


def build_known_cards(
    numbered: list[tuple[int, Finding]], budget: int = KNOWN_BUDGET
) -> list[Card]:
    """Return the cards of known deviations, which have their own numbers."""
    room = _Budget(budget)
    return [_guarded(f"D{number}", finding, room) for number, finding in numbered]


def _guarded(label: str, finding: Finding, room: _Budget) -> Card:
    """Return the card of a finding; if it cannot be made, one with the facts alone."""
    return attempt(
        f"the card {label}",
        lambda: _card(label, finding, room),
        lambda fault: _bare_card(label, finding, fault),
    )


def _bare_card(label: str, finding: Finding, fault: str) -> Card:
    return Card(
        label=label,
        finding=finding,
        message=f"{finding.message[:_SENTENCE]} ({fault})",
        expected=finding.expected[:_SENTENCE],
        got=finding.got[:_SENTENCE],
        size="input not shown",
        source=finding.origin,
    )


def _card(label: str, finding: Finding, room: _Budget) -> Card:
    room.left_out = []
    prefix = label.lower()
    sequence = _sequence(finding, prefix, room)
    wrong = [difference for difference in finding.outputs if not difference.equal]
    alone = not step_count(finding)
    fields, batch = _pictures(finding, wrong, prefix, room) if alone else ((), "")
    undrawn = _merged(wrong)[_FIELDS:] if alone else []
    literal = _source_text("the literal of the input", lambda: case_literal(finding.case))
    literal = room.keep(literal, "literal of the input")
    example = _source_text("the @example line", lambda: example_line(finding.case))
    failing = (
        next((card.step.number for card in sequence.steps if card.step.failing), 0)
        if sequence
        else 0
    )
    return Card(
        label=label,
        finding=finding,
        consequence=consequence(finding),
        message=shorten(finding.message, _SENTENCE),
        expected=shorten(finding.expected, _SENTENCE),
        got=shorten(finding.got, _SENTENCE),
        size=size_sentence(finding),
        source=_source(finding),
        fields=fields,
        more_fields=tuple(difference.field for difference in undrawn),
        equal_fields=tuple(d.field for d in finding.outputs if d.equal) if alone else (),
        shared=shared_mistake(finding.oracle, finding.outputs),
        sequence=sequence,
        after=f"after step {failing}" if failing else "",
        batch=batch,
        facts=batch_facts(finding.case.batch) if finding.case.batch else "",
        params=_params(finding),
        arguments=room.keep("\n".join(finding.arguments), "arguments"),
        literal=literal,
        literal_open=literal.count("\n") < _SHORT_LITERAL and not finding.steps,
        example=room.keep(example, "@example") if literal and alone else "",
        snippet=room.keep(finding.snippet, "program"),
        log=room.keep(middle_out(finding.log, _LOG), "log"),
        left_out=tuple(room.left_out),
    )


def _merged(wrong: list[Difference]) -> list[Difference]:
    """Return the wrong fields, those with equal values (a result and its buffer) as one."""
    merged: list[Difference] = []
    for difference in wrong:
        for place, other in enumerate(merged):
            if structs.replace(difference, field=other.field) == other:
                merged[place] = structs.replace(other, field=f"{other.field}, {difference.field}")
                break
        else:
            merged.append(difference)
    return merged


def _source_text(what: str, make: Callable[[], str]) -> str:
    """Return Python source; a comment if it cannot be made."""
    return attempt(what, make, lambda fault: f"# {escape_line(fault)}")


def _sequence(finding: Finding, prefix: str, room: _Budget) -> SequenceCard | None:
    """Return the steps, without pictures if these do not fit, None if no step fits."""
    sequence = attempt("the steps", lambda: build_sequence(finding, prefix), lambda _fault: None)
    if sequence is None or room.take(sequence.size, "pictures"):
        return sequence
    plain = sequence.without_pictures()
    return plain if room.take(plain.size, "steps") else None


def _pictures(
    finding: Finding, wrong: list[Difference], prefix: str, room: _Budget
) -> tuple[tuple[FieldPicture, ...], str]:
    """Return the pictures of the wrong fields and of the batch."""
    merged = _merged(wrong)[:_FIELDS]
    fields = tuple(field_picture(d, f"{prefix}-{i}") for i, d in enumerate(merged))
    batch = drawn("the picture of the batch", lambda: _batch(finding, wrong, prefix))
    if room.take(len(batch) + sum(len(field.svg) for field in fields), "pictures"):
        return fields, batch
    return tuple(field._replace(svg="") for field in fields), ""


def size_sentence(finding: Finding) -> str:
    """Return the input's size before and after shrinking, in words."""
    steps = step_count(finding)
    if steps:
        after, before = many(steps, "step"), many(finding.steps_before, "step")
        # "3 steps, shrunk from 22", without a second "steps".
        return _shrunk(after, before, before.split()[0])
    if finding.case.batch is None:
        return "no batch"
    after = batch_size(finding.requests, finding.tokens)
    before = batch_size(finding.requests_before, finding.tokens_before)
    return _shrunk(after, before, before)


def _shrunk(after: str, before: str, before_text: str) -> str:
    if after == before:
        return f"{after}; it was found at this size"
    return f"{after}, shrunk from {before_text}"


def _source(finding: Finding) -> str:
    return f"{finding.origin} ({finding.source})" if finding.source else finding.origin


def _batch(finding: Finding, wrong: list[Difference], prefix: str) -> str:
    case = finding.case
    if case.batch is None:
        return ""
    return batch_picture(case.batch, prefix, find_focus(case, wrong), find_marks(case))


def _params(finding: Finding) -> tuple[tuple[str, str, str], ...]:
    """Return name, value and meaning of the case's other arguments, and its fault."""
    texts = meanings(finding.case)
    shown = [
        (name, shorten(repr(value), 200), texts.get(name, ""))
        for name, value in finding.case.params.items()
        if name != "steps"
    ]
    return (*shown, ("fault", finding.case.fault, "")) if finding.case.fault else tuple(shown)
