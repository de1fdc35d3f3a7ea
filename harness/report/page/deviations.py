"""Cards of known deviations."""

from __future__ import annotations

import datetime
from typing import NamedTuple
from urllib.parse import quote

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.run import DeviationResult, Run
from attnproof.harness.report.page.cards import Card, build_known_cards
from attnproof.harness.report.shared.wording import many


class DeviationCard(NamedTuple):
    """One known deviation as the page shows it."""

    label: str
    """Label such as "D1"."""
    anchor: str
    deviation: DeviationResult
    age: str
    """Age such as "known since 2025-10-01, 93 days"; "" without a date."""
    card: Card | None
    """The smallest case, drawn like a failure; None for a stale deviation."""


def build_deviations(run: Run) -> list[DeviationCard]:
    """Return one card per known deviation, in the order of the run."""
    shown = [
        (number, deviation.shown)
        for number, deviation in enumerate(run.deviations, 1)
        if deviation.shown is not None
    ]
    cards = {card.label: card for card in build_known_cards(shown)}
    return [
        DeviationCard(
            label, _anchor(deviation), deviation, _age(deviation, run.started), cards.get(label)
        )
        for label, deviation in ((f"D{n}", d) for n, d in enumerate(run.deviations, 1))
    ]


def _anchor(deviation: DeviationResult) -> str:
    """Return the address on the page, which is the same in every run."""
    if deviation.shown is not None:
        return f"/finding/{deviation.shown.id}"
    place = f"/stale/{deviation.id}/{deviation.candidate}/{deviation.operation}"
    return quote(escape_line(place))


def _age(deviation: DeviationResult, started: str) -> str:
    """Return the date since which the deviation is known, and the days until the run."""
    if not deviation.since:
        return ""
    since = datetime.date.fromisoformat(deviation.since)
    days = (datetime.datetime.fromisoformat(started).date() - since).days
    return f"known since {deviation.since}, {many(days, 'day')}"
