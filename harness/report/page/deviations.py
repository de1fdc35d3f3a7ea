"""Known deviations: what every form of the report says of them, and their cards."""

from __future__ import annotations

import datetime
from typing import NamedTuple

from attnproof.harness.model.run import DeviationResult, Run
from attnproof.harness.report.page.cards import Card, build_known_cards
from attnproof.harness.report.shared.wording import many


class DeviationCard(NamedTuple):
    """One known deviation as the page shows it."""

    label: str
    """Such as "K1"."""
    anchor: str
    deviation: DeviationResult
    age: str
    """Such as "known since 2025-10-01, 93 days", "" if nobody wrote down since when."""
    card: Card | None
    """Its smallest case, drawn as a failure is; None if it is stale."""


def build_deviations(run: Run) -> list[DeviationCard]:
    """One card a known deviation, in the order of the run."""
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
        for label, deviation in ((f"K{n}", d) for n, d in enumerate(run.deviations, 1))
    ]


def deviations_title(deviations: list[DeviationResult]) -> str:
    """How many there are, such as "3 known deviations, 1 of them stale"."""
    stale = sum(deviation.stale for deviation in deviations)
    title = many(len(deviations), "known deviation")
    return f"{title}, {stale:,} of them stale" if stale else title


def deviation_line(deviation: DeviationResult) -> str:
    """All about one of them on a line, for a terminal or a log."""
    about = f"{deviation.operation} [{deviation.candidate}] {deviation.id}: {deviation.title}"
    if deviation.stale:
        version = deviation.version or "this version"
        return f"STALE  {about}; no case shows it in {version}: correct its versions, or drop it"
    return f"KNOWN  {about}; {many(deviation.cases, 'case')}; {deviation.command}"


def _anchor(deviation: DeviationResult) -> str:
    """Its place on the page: the same from run to run, as that of a finding."""
    if deviation.shown is not None:
        return f"/finding/{deviation.shown.id}"
    return f"/stale/{deviation.id}/{deviation.candidate}/{deviation.operation}"


def _age(deviation: DeviationResult, started: str) -> str:
    """How long it is known at the run's start."""
    if not deviation.since:
        return ""
    since = datetime.date.fromisoformat(deviation.since)
    days = (datetime.datetime.fromisoformat(started).date() - since).days
    return f"known since {deviation.since}, {many(days, 'day')}"
