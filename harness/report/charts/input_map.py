"""The map of the input space: a square for each pair of values of two features."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import NamedTuple

import numpy as np

from attnproof.harness.report.charts.figure import Chart, Table
from attnproof.harness.report.pictures.svg import CHARACTER, Markup, picture, tag, text
from attnproof.harness.report.shared.coverage import CELLS, PAIRS, Coverage
from attnproof.harness.report.shared.wording import many

_CELL, _APART = 6, 3
"""Pixels of a square, and between two features."""
_TOP = 6
_LAYERS = (
    ("few", 0.0, 2.5),
    ("many", 0.0, 2.5),
    ("seen", 2.5, 2.5),
    ("partly", 2.5, 2.5),
    ("inside", 2.5, 2.5),
    ("unseen", 0.0, 0.0),
)
"""Layers from the lowest to the highest, and the place of a mark within its square."""
_MANY = 10
"""Tests of a pair from which its square is dark."""
READING = (
    "Each feature is a band of rows and a band of columns with the same values, in the order of "
    "the list above; a square is a pair of values of two features, and the diagonal holds the "
    "single values. A filled square has tests: pale below 10, dark from 10 on. Dots, rings and "
    "crosses are laid over the pairs that engine steps of traces and recordings have: a dot if "
    "every operation that was given such a step has a test of the pair, a ring if only some have, "
    "a cross if none has. An empty square is a pair that no case has; most of these are impossible."
)


class _Places(NamedTuple):
    """Cells that are drawn, with their distance from the map's corner in pixels."""

    cells: list[int]
    at: dict[int, int]
    bands: list[tuple[str, int, int]]
    """Title, first pixel and pixels of each feature."""
    size: int


def input_map(coverage: Coverage) -> Chart:
    """Return the map of a run's coverage; features that no case has are left out."""
    places = _places(coverage)
    title = "Pairs of features"
    real, tested = coverage.num_pairs
    partly = int(((coverage.lacking > 0) & (coverage.tested > 0) & PAIRS).sum())
    sentence = (
        f"{many(real, 'pair')} of engine steps: {tested - partly:,} tested by every operation "
        f"that has them, {partly:,} by some, {real - tested:,} by none."
    )
    bands = tuple(_band_row(coverage, places, number) for number in range(len(places.bands)))
    table = Table(
        "Pairs of values of each feature with those of all other features",
        ("Feature", "Pairs of engine steps", "Tested by every operation", "By some", "By none"),
        bands,
    )
    return Chart("inputs", title, sentence, _draw(coverage, places, sentence), READING, table)


def _places(coverage: Coverage) -> _Places:
    used = (coverage.tested.diagonal() + coverage.real.diagonal()) > 0
    at: dict[int, int] = {}
    bands, cells, pixel = [], [], 0
    for title, group in groupby(CELLS, key=lambda cell: cell.feature):
        numbers = [cell.number for cell in group]
        if not used[numbers].any():
            continue
        first = pixel
        for number in numbers:
            at[number] = pixel
            cells.append(number)
            pixel += _CELL
        bands.append((title, first, pixel - first))
        pixel += _APART
    return _Places(cells, at, bands, pixel - _APART)


def _band_row(coverage: Coverage, places: _Places, number: int) -> tuple[str, ...]:
    title = places.bands[number][0]
    own = np.array([cell.feature == title for cell in CELLS])
    mask = (PAIRS | PAIRS.T) & own[:, None] & (coverage.real > 0)
    tested, lacking = coverage.tested > 0, coverage.lacking > 0
    counts = (mask, mask & tested & ~lacking, mask & tested & lacking, mask & ~tested)
    return (title, *(f"{int(count.sum()):,}" for count in counts))


def _draw(coverage: Coverage, places: _Places, sentence: str) -> Markup:
    left = math.ceil(max(len(title) for title, _, _ in places.bands) * CHARACTER) + 10
    layers: dict[str, list[str]] = {}
    for row in places.cells:
        for layer, runs in _runs(coverage, places, row).items():
            paths = layers.setdefault(layer, [])
            paths.extend(_path(layer, x, places.at[row], length) for x, length in runs)
    layers["inside"] = layers.get("partly", [])
    body = "".join(_labels(places, left))
    body += "".join(
        tag(
            "path",
            d="".join(layers[name]),
            class_=f"map-{name}",
            transform=f"translate({left + x} {_TOP + y})",
        )
        for name, x, y in _LAYERS
        if layers.get(name)
    )
    return picture(
        left + places.size + 6,
        _TOP + places.size + left,
        "Pairs of features of the inputs",
        f"{sentence} A triangle of squares; the table below has the pairs of each feature.",
        body,
        "inputs",
        hatched=False,
    )


def _runs(coverage: Coverage, places: _Places, row: int) -> dict[str, list[tuple[int, int]]]:
    """Return the first pixel and the number of neighbouring squares of each layer of a row."""
    runs: dict[str, list[tuple[int, int]]] = {}
    ends: dict[str, int] = {}
    for column in places.cells:
        if column > row:
            break
        if column != row and CELLS[column].feature == CELLS[row].feature:
            continue
        x = places.at[column]
        for layer in _layers(coverage, row, column):
            if ends.get(layer) == x:
                first, length = runs[layer].pop()
                runs[layer].append((first, length + 1))
            else:
                runs.setdefault(layer, []).append((x, 1))
            ends[layer] = x + _CELL
    return runs


def _layers(coverage: Coverage, row: int, column: int) -> Iterator[str]:
    tested = coverage.tested[row, column]
    if tested:
        yield "many" if tested >= _MANY else "few"
    if coverage.real[row, column]:
        lacking = coverage.lacking[row, column]
        yield "unseen" if not tested else "partly" if lacking else "seen"


def _path(layer: str, x: int, y: int, length: int) -> str:
    """Return a run of squares, dots, rings or crosses as a part of a path.

    The dashes of the style sheet divide a line into squares and dots.
    """
    if layer in ("few", "many"):
        return f"M{x} {y}h{length * _CELL - 1}"
    if layer == "unseen":
        return "".join(f"M{x + n * _CELL} {y}l5 5m0-5l-5 5" for n in range(length))
    # The last dot of a line is drawn if the line goes a little beyond its centre.
    return f"M{x} {y}h{(length - 1) * _CELL or ''}.1"


def _labels(places: _Places, left: int) -> Iterator[Markup]:
    bottom = _TOP + places.size
    for title, first, size in places.bands:
        middle = first + size / 2
        yield text(left - 8, _TOP + middle + 4, title, "t soft end")
        turned = f"translate({left + middle + 4:.0f} {bottom + 8}) rotate(-90)"
        yield tag("text", escape(title), class_="t soft end", transform=turned)
    edges = [first for _, first, _ in places.bands[1:]]
    lines = "".join(
        f"M{left} {_TOP + y - 1.5:.1f}h{y + 40}M{left + y - 1.5:.1f} {_TOP + y - 40}V{bottom}"
        for y in edges
    )
    yield tag("path", d=lines, class_="grid")
