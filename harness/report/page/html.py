"""index.html: one file with its style and script; it fetches nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from attnproof.harness.documents import is_published, page_address
from attnproof.harness.escaping import escape_line, escape_lines
from attnproof.harness.guard import attempt, collected_faults
from attnproof.harness.model.run import Run
from attnproof.harness.report.charts.growth import READING as GROWTH_READING
from attnproof.harness.report.page.appendix import GLOSSARY, environment_rows, settings_rows
from attnproof.harness.report.page.cards import Card, build_cards
from attnproof.harness.report.page.coverage import build_inputs
from attnproof.harness.report.page.deviations import build_deviations
from attnproof.harness.report.page.matrix import Matrix, build_matrix, skips
from attnproof.harness.report.page.specification import build_specification, link_of
from attnproof.harness.report.page.strength import build_strength
from attnproof.harness.report.performance.section import build_performance
from attnproof.harness.report.shared.comparison import base_lines, is_new
from attnproof.harness.report.shared.deviations import deviations_title
from attnproof.harness.report.shared.diagnoses import entry_of
from attnproof.harness.report.shared.finding_text import FindingText
from attnproof.harness.report.shared.literal import IMPORTS
from attnproof.harness.report.shared.wording import (
    STATE_WORDS,
    capital,
    counts_sentence,
    device_words,
    many,
    reason_label,
)

_TEMPLATES = Path(__file__).with_name("templates")
_STYLES = (
    "colours.css",
    "page.css",
    "parts.css",
    "pictures.css",
    "charts.css",
    "map.css",
    "print.css",
)
_SCRIPTS = ("page.js",)
_SECTIONS = (
    "failures",
    "deviations",
    "matrix",
    "advice",
    "performance",
    "inputs",
    "strength",
    "appendix",
    "specification",
)
_FIRST_OF_BENCH = ("failures", "performance")
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
    templates = _environment()
    with collected_faults() as faults:
        facts = _facts(run, oracles)
        facts["drawn_cards"] = [_card(templates, card, facts) for card in facts["cards"]]
        first = _FIRST_OF_BENCH if run.bench else ()
        names = dict.fromkeys((*first, *_SECTIONS))
        sections = [_section(templates, name, facts) for name in names]
        # Rendered last, because it lists the faults of the others.
        header = attempt(
            "the header",
            lambda: _render(templates, "verdict", facts | _header_facts(run) | {"faults": faults}),
            lambda fault: _bare_header(run, [*faults, fault]),
        )
    return templates.get_template("report.html.j2").render(
        run=run,
        findings=len(run.findings),
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        header=header,
        sections=sections,
    )


def _facts(run: Run, oracles: Mapping[str, str]) -> dict[str, Any]:
    """Return what the templates show; what cannot be made is empty."""

    def several(what: str, make: Callable[[], Iterable[Any]]) -> list[Any]:
        return attempt(what, lambda: list(make()), lambda _fault: [])

    specification = several("the specification", lambda: build_specification(run))
    matrix = attempt("the matrix", lambda: build_matrix(run, oracles), lambda _: Matrix((), (), ()))
    return {
        "run": run,
        "oracles": oracles,
        "glossary": GLOSSARY,
        "case_imports": IMPORTS,
        "growth_reading": GROWTH_READING,
        "matrix": matrix,
        "new_ids": several("the new findings", lambda: _new_ids(run)),
        "cards": several("the failures", lambda: build_cards(run.findings)),
        "deviations": several("the known deviations", lambda: build_deviations(run)),
        "deviations_title": attempt(
            "the number of deviations", lambda: deviations_title(run.deviations), str
        ),
        "specification": specification,
        "section_numbers": {result.name: result.section for result in run.operations},
        "cite": partial(link_of, sections=specification),
        "performance": attempt("the performance", lambda: build_performance(run), lambda _: None),
        "inputs": attempt("the inputs", lambda: build_inputs(run), lambda _: None),
        "strength": attempt("the strength", lambda: build_strength(run), lambda _: None),
        "skips": several("the skips", lambda: skips(matrix)),
        "environment": several("the environment", lambda: environment_rows(run)),
        "settings": several("the settings", lambda: settings_rows(run)),
    }


def _new_ids(run: Run) -> list[str]:
    return [finding.id for finding in run.findings if is_new(finding, run.base)]


def _header_facts(run: Run) -> dict[str, Any]:
    return {
        "sentence": attempt("the counts", lambda: counts_sentence(run), str),
        "base_lines": attempt("the comparison", lambda: base_lines(run), lambda fault: [fault]),
        "devices": attempt("the devices", lambda: device_words(run), str),
        "reason_label": _REASON_LABELS[reason_label(run)],
    }


def _render(templates: jinja2.Environment, name: str, facts: Mapping[str, Any]) -> Markup:
    return Markup(templates.get_template(f"{name}.html.j2").render(facts))


def _section(templates: jinja2.Environment, name: str, facts: Mapping[str, Any]) -> Markup:
    """Return a section of the page, a sentence if it cannot be made."""
    return attempt(f"the section {name}", lambda: _render(templates, name, facts), _as_section)


def _card(templates: jinja2.Environment, card: Card, facts: Mapping[str, Any]) -> Markup:
    """Return a failure card, a sentence if it cannot be made."""
    known = {"card": card} | dict(facts)
    return attempt(f"the card {card.label}", lambda: _render(templates, "card", known), _as_section)


def _as_section(fault: str) -> Markup:
    return Markup('<section class="wide"><p>{}</p></section>').format(escape_line(fault))


def _bare_header(run: Run, faults: list[str]) -> Markup:
    """Return the verdict and the faults alone."""
    lines = Markup("").join(Markup("<p>{}</p>").format(escape_line(fault)) for fault in faults)
    return Markup(
        '<header class="verdict verdict-{}"><div class="wide"><h1>attnproof {}</h1>{}'
        '<span id="tools"></span></div></header>'
    ).format(run.verdict.lower(), run.verdict, lines)


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
    environment.filters["evidence"] = lambda finding: FindingText(finding).evidence()
    environment.filters["capital"] = capital
    environment.filters["state_word"] = STATE_WORDS.__getitem__
    environment.filters["picture"] = Markup
    environment.globals |= {
        "meaning_of": lambda finding: entry_of(finding.diagnosis, finding.oracle),
        "page_address": page_address,
        "is_published": is_published(),
    }
    return environment


def _finalize(value: Any) -> Any:
    """Escape hidden characters; jinja2 then escapes the markup."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return escape_lines(value) if is_text else value


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
