"""index.html: one file with its style and script; it fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from attnproof.harness.model.run import Run
from attnproof.harness.report.charts.growth import READING as GROWTH_READING
from attnproof.harness.report.page.appendix import GLOSSARY, environment_rows, settings_rows
from attnproof.harness.report.page.cards import build_cards
from attnproof.harness.report.page.deviations import build_deviations
from attnproof.harness.report.page.matrix import build_matrix, skips
from attnproof.harness.report.performance.section import build_performance
from attnproof.harness.report.shared.deviations import deviations_title
from attnproof.harness.report.shared.literal import IMPORTS
from attnproof.harness.report.shared.wording import (
    STATE_WORDS,
    capital,
    clean,
    counts_sentence,
    device_words,
    many,
    reason_label,
    tally,
)

_TEMPLATES = Path(__file__).with_name("templates")
_STYLES = ("colours.css", "page.css", "parts.css", "pictures.css", "charts.css", "print.css")
_SCRIPTS = ("page.js",)
_REASON_LABELS = {
    "Failed": "Failed because",
    "Slower": "Slower than the baseline allows",
    "Incomplete": "Incomplete because",
}


def render_html(run: Run, oracles: Mapping[str, str]) -> str:
    """Return the report of `run`; `oracles` maps an oracle's name to its contract in a sentence.

    The same run gives the same text: no clock or random number is read.
    """
    style, script = _joined(_STYLES), _joined(_SCRIPTS)
    matrix = build_matrix(run, oracles)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            run=run,
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
            sentence=counts_sentence(run),
            tally=tally(run),
            reason_label=_REASON_LABELS[reason_label(run)],
            devices=device_words(run),
            cards=build_cards(run.findings),
            deviations=build_deviations(run),
            deviations_title=deviations_title(run.deviations),
            matrix=matrix,
            performance=build_performance(run),
            growth_reading=GROWTH_READING,
            skips=skips(matrix),
            oracles=oracles,
            environment=environment_rows(run),
            settings=settings_rows(run),
            glossary=GLOSSARY,
            case_imports=IMPORTS,
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalize,
    )
    environment.filters["many"] = many
    environment.filters["capital"] = capital
    environment.filters["state_word"] = STATE_WORDS.__getitem__
    environment.filters["picture"] = Markup
    return environment


def _finalize(value: Any) -> Any:
    """Remove terminal colours and control codes, which strings of candidates may hold."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _joined(names: tuple[str, ...]) -> str:
    return "\n".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in names)


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows only this page's style and script."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode('ascii')}"
