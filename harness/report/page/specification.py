"""Sections of the specification on the page, for the operations that failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from attnproof import reference
from attnproof.harness.model.run import Run
from attnproof.harness.report.pictures.svg import Markup

_HEADING = re.compile(r"^## (\d+)\. (.+)$", re.MULTILINE)
_ITEM = re.compile(r"^(?:-|\d+\.) ")
_ERRATUM = re.compile(r"\bE\d+(?=:)")
_CITED_ERRATUM = re.compile(r"\bE\d+\b")
_CITED_SECTION = re.compile(r"\b(?:section|rule) (\d+)")
_LINK = re.compile(r"https?://[^\s<>\"']+")
_INLINE = (
    (re.compile(r"`([^`]+)`"), r"<code>\1</code>"),
    (re.compile(r"\*\*(.+?)\*\*"), r"<strong>\1</strong>"),
)


class Section(NamedTuple):
    """A section of the specification."""

    number: str
    title: str
    html: Markup
    errata: frozenset[str]
    """Ids of the errata that have an address on the page."""


def build_specification(run: Run) -> list[Section]:
    """Return the sections of the operations with a finding or a known deviation, in order."""
    sections = {result.name: result.section for result in run.operations}
    failed = [f.operation for f in run.findings] + [d.operation for d in run.deviations]
    cited = {number for d in run.deviations for number in _CITED_SECTION.findall(d.reference)}
    wanted = cited | {sections.get(name, "") for name in failed}
    return [section for section in _sections() if section.number in wanted]


def link_of(citation: str, sections: list[Section]) -> str:
    """Return the address that a citation names, "" for none.

    It is a web page, an erratum of the sections, or one of the sections.
    """
    if page := _LINK.search(citation):
        return page[0].rstrip(".,;)")
    numbers = {section.number for section in sections}
    errata = {erratum for section in sections for erratum in section.errata}
    for name in (*_CITED_ERRATUM.findall(citation), *_CITED_SECTION.findall(citation)):
        if name in errata or name in numbers:
            return f"#/spec/{name}"
    return ""


@cache
def _sections() -> tuple[Section, ...]:
    """Return all sections, none if the text is not installed."""
    path = Path(reference.__file__).with_name("SPEC.md")
    if not path.is_file():
        return ()
    parts = _HEADING.split(path.read_text(encoding="utf-8"))
    seen: set[str] = set()
    return tuple(
        _section(number, title, text, seen)
        for number, title, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    )


def _section(number: str, title: str, text: str, seen: set[str]) -> Section:
    errata = frozenset(_ERRATUM.findall(text)) - seen
    body = "\n".join(_blocks(text.partition("\n## ")[0].strip().splitlines()))
    for erratum in errata:
        body = re.sub(rf"\b{erratum}:", f'<b id="/spec/{erratum}">{erratum}:</b>', body, count=1)
    seen |= errata
    return Section(number, re.sub("`", "", title), body, errata)


def _blocks(lines: list[str]) -> Iterator[Markup]:
    """Yield paragraphs, lists and tables of the Markdown that the specification uses."""
    for kind, group in groupby(filter(str.strip, lines), _kind):
        inside = list(group)
        if kind == "table":
            yield _table(inside)
        elif kind == "item":
            items = "".join(f"<li>{_inline(_ITEM.sub('', line))}</li>" for line in inside)
            yield f"<ul>{items}</ul>"
        else:
            yield "".join(f"<p>{_inline(line)}</p>" for line in inside)


def _kind(line: str) -> str:
    if line.startswith("|"):
        return "table"
    return "item" if _ITEM.match(line) else "text"


def _table(lines: list[str]) -> Markup:
    head, _, *rows = ([_inline(c.strip()) for c in line.strip("|").split("|")] for line in lines)
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return (
        '<div class="scroll"><table class="plain"><caption>Fields and values</caption>'
        f"<thead><tr>{columns}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _inline(text: str) -> Markup:
    html = escape(text.strip(), quote=False)
    for pattern, tags in _INLINE:
        html = pattern.sub(tags, html)
    return html
