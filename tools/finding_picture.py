"""Draw a finding of `examples/wrong_backend.py` as one SVG file, for the README.

    python tools/finding_picture.py [FILE]

The card is that of a real report: the tool verifies the example with a fixed seed and takes
heading, pictures and replay command from the page. Colours are those of the light page, because
programs that show an SVG outside a browser know no variables.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from html import escape, unescape
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "figures" / "finding.svg"
OPERATION = "_make_metadata_with_slice"
_CANDIDATE = "examples/wrong_backend.py"
_STYLES = ROOT / "harness" / "report" / "page" / "templates"
_SANS = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
_MARGIN = 24
_COLUMNS = 110
"""Characters of a line of text."""


class Card(NamedTuple):
    """Text and pictures of the first card of a report."""

    heading: str
    kind: str
    where: str
    evidence: str
    message: str
    size: str
    pictures: tuple[str, ...]
    """Picture of the batch, then that of the wrong field."""
    field: str
    command: str


def card_of(page: str) -> Card:
    """Return the first card of a report's page."""
    card = page[page.index('<article class="card"') :].partition("</article>")[0]
    heading = _between(card, r"<h3.*?</a>(.*?)<span")
    figures = re.findall(r"<figcaption>(.*?)</figcaption>", card, re.DOTALL)
    return Card(
        heading=heading,
        kind=_between(card, r'<span class="kind">(.*?)</span>'),
        where=_between(card, r'<p class="where">(.*?)</p>'),
        evidence=_between(card, r'<p class="consequence">(.*?)</p>'),
        message=_between(card, r'<details class="fold" open>\s*<summary>(.*?)</summary>'),
        size=_plain(figures[0]).removeprefix("Input ").partition(". From")[0],
        pictures=tuple(re.findall(r'<svg class="picture".*?</svg>', card, re.DOTALL)),
        field=_plain(figures[1]),
        command=_between(card, r"<h4>Reproduce</h4>.*?<code>(.*?)</code>"),
    )


def _between(card: str, pattern: str) -> str:
    match = re.search(pattern, card, re.DOTALL)
    if match is None:
        raise SystemExit(f"the page has no {pattern}: adapt {Path(__file__).name} to the template")
    return _plain(match[1])


def _plain(markup: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", markup))).strip()


def draw(card: Card) -> str:
    """Return the card as an SVG document."""
    parts: list[str] = []
    y = 44.0
    parts.append(_line(_MARGIN, y, card.heading, "title"))
    y += 26
    parts.append(_line(_MARGIN, y, f"{card.where} · {card.kind}", "soft"))
    words = [*wrap(card.message, _COLUMNS), *wrap(card.evidence, _COLUMNS)]
    for text in words:
        y += 26
        parts.append(_line(_MARGIN, y, text, "text"))
    captions = (f"The smallest input: {card.size}", card.field)
    lines = [(card.heading, 11.6), *((text, 8.5) for text in words), (card.command, 8.0)]
    width = max(len(text) * wide for text, wide in [*lines, *((each, 8.6) for each in captions)])
    for caption, picture in zip(captions, card.pictures, strict=False):
        y += 36
        parts.append(_line(_MARGIN, y, caption, "strong"))
        y += 10
        parts.append(picture.replace("<svg ", f'<svg x="{_MARGIN}" y="{y:g}" ', 1))
        wide, high = _size(picture)
        y, width = y + high, max(width, wide)
    y += 34
    parts.append(_line(_MARGIN, y, card.command, "code"))
    width, height = width + 2 * _MARGIN, y + 22
    ground = (
        f'<rect class="card" x="1" y="1" width="{width - 2:g}" height="{height - 2:g}" rx="8"/>'
    )
    bar = f'<rect class="edge" x="1" y="1" width="6" height="{height - 2:g}" rx="3"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img">'
        f"<title>{escape(card.heading)}: {escape(card.message)}</title>"
        f"<style>{_style()}</style>{ground}{bar}{''.join(parts)}</svg>\n"
    )


def _size(picture: str) -> tuple[float, float]:
    """Return width and height of a picture in px."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)
    assert box is not None
    return float(box[1]), float(box[2])


def _line(x: float, y: float, text: str, class_: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="c-{class_}">{escape(text)}</text>'


def _style() -> str:
    """Return the page's styles of pictures in the light colours, and those of the card."""
    colours = (_STYLES / "colours.css").read_text(encoding="utf-8")
    light = dict(re.findall(r"--([\w-]+): light-dark\((#\w+),", colours))
    own = (
        f".c-title {{ font: 600 20px {_SANS}; fill: var(--text); }}"
        f".c-text {{ font: 15px {_SANS}; fill: var(--text); }}"
        f".c-soft {{ font: 14px {_SANS}; fill: var(--soft); }}"
        f".c-strong {{ font: 600 14px {_SANS}; fill: var(--text); }}"
        ".c-code { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: var(--text); }"
        ".card { fill: var(--raised); stroke: var(--line); } .edge { fill: var(--bad); }"
    )
    pictures = (_STYLES / "pictures.css").read_text(encoding="utf-8").partition("@media")[0]
    return re.sub(r"var\(--([\w-]+)\)", lambda match: light[match[1]], pictures + own)


def page_of_the_example() -> str:
    """Verify the example and return the report's page."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "attnproof", "verify", "--candidate", _CANDIDATE]
        command += ["--ops", OPERATION, "--seed", "1", "--out", folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 1:
            raise SystemExit(f"the example must fail: {done.stdout}{done.stderr}")
        page = (Path(folder) / "index.html").read_text(encoding="utf-8")
        return page.replace(folder, "reports/latest")


def main() -> None:
    """Write the picture."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    path.write_text(draw(card_of(page_of_the_example())), encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
