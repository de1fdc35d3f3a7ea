"""Parts of all charts: axes, marks, and the figure with its table of the same values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from html import escape
from typing import NamedTuple

from attnproof.harness.report.pictures.svg import CHARACTER, Markup, tag, text

Point = tuple[float, float]

SERIES = 4
"""Number of line styles; further candidates reuse them."""
_ACROSS, _UPWARD = 56, 26
"""Minimum pixels between two labels, side by side and one above the other."""
_STEPS = ((1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8), (1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,))
"""Labels in a decade of a logarithmic axis, the finest choice first."""


class Table(NamedTuple):
    """Rows of text; the first cell of a row is its heading."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Chart(NamedTuple):
    """A picture with its title, result in words, reading instructions, and table of values."""

    key: str
    title: str
    sentence: str
    svg: Markup
    reading: str
    table: Table


class Axis(NamedTuple):
    """A mapping of values to pixels."""

    low: float
    high: float
    start: float
    """Pixel of `low`."""
    end: float
    log: bool = True

    def at(self, value: float) -> float:
        """Return the value's pixel; a value outside the axis is put at its end."""
        value = min(max(value, self.low), self.high)
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return round values, as many as fit as labels."""
        if not self.log:
            return _linear_ticks(self.low, self.high)
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        apart = _ACROSS if self.end > self.start else _UPWARD
        room = max(3, int(abs(self.end - self.start) / apart))
        inside: list[float] = []
        for steps in _STEPS:
            inside = [
                float(f"{step}e{decade}")
                for decade in decades
                for step in steps
                if self.low <= float(f"{step}e{decade}") <= self.high
            ]
            if len(inside) <= room:
                break
        return inside[:: -(-len(inside) // room)]


def log_axis(values: Iterable[float], start: float, end: float, *, room: float = 1.25) -> Axis:
    """Return a logarithmic axis around the positive values, wider by `room` on both sides."""
    positive = [value for value in values if 0 < value < math.inf] or [1.0]
    low, high = min(positive) / room, max(positive) * room
    # An axis of less than a factor of 2 would show noise as large differences.
    if high < low * 2:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(2), middle * math.sqrt(2)
    return Axis(low, high, start, end)


def linear_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """Return a linear axis around values of at least 0, wider by a twelfth on both sides."""
    finite = list(values) or [0.0]
    low, high = min(finite), max(finite)
    margin = (high - low) / 12 or high / 12 or 1.0
    return Axis(max(0.0, low - margin), high + margin, start, end, log=False)


def upright(axis: Axis, top: float, bottom: float, label: Callable[[float], str]) -> Markup:
    """Draw grid lines and labels of a horizontal axis, from `top` to `bottom`."""
    ticks = axis.ticks()
    grid = "".join(f"M{_px(axis.at(tick))} {_px(top)}V{_px(bottom)}" for tick in ticks)
    labels = "".join(tag("tspan", escape(label(tick)), x=_px(axis.at(tick))) for tick in ticks)
    shown = tag("text", labels, y=bottom + 15, class_="t soft middle")
    return tag("path", d=grid, class_="grid") + shown


def level(axis: Axis, left: float, right: float, label: Callable[[float], str]) -> Markup:
    """Draw grid lines and labels of a vertical axis, from `left` to `right`."""
    ticks = axis.ticks()
    grid = "".join(f"M{_px(left)} {_px(axis.at(tick))}H{_px(right)}" for tick in ticks)
    labels = "".join(
        tag("tspan", escape(label(tick)), x=f"{left - 6:.0f}", y=_px(axis.at(tick) + 4))
        for tick in ticks
    )
    return tag("path", d=grid, class_="grid") + tag("text", labels, class_="t soft end")


def line(points: list[Point], series: int, *, marked: bool = False) -> Markup:
    """Join points by a line in the style of the series, with a mark at each if `marked`."""
    path = "".join(f"{'L' if i else 'M'}{_px(x)} {_px(y)}" for i, (x, y) in enumerate(points))
    class_ = f"line k{series % SERIES}{' marked' if marked else ''}"
    return tag("path", d=path, class_=class_) if points else ""


def staircase(points: list[Point], series: int) -> Markup:
    """Draw a line that stays level until the next point, with at most one step per pixel."""
    if not points:
        return ""
    corners = {_px(x): _px(y) for x, y in points[1:]}
    path = f"M{_px(points[0][0])} {_px(points[0][1])}"
    path += "".join(f"H{x}V{y}" for x, y in corners.items())
    return tag("path", d=path, class_=f"line k{series % SERIES}")


def marks(points: Iterable[Point], series: int, size: float = 7.0) -> Markup:
    """Draw a mark at each point: circle, square, triangle or diamond by the series."""
    style = series % SERIES
    # A line without length is drawn as its cap: a circle or a square in ten bytes.
    shapes = [
        f"M{_px(x)} {_px(y)}h0" if style < 2 else _SHAPES[style - 2](x, y, size / 2)
        for x, y in points
    ]
    width = size if style < 2 else None
    return (
        tag("path", d="".join(shapes), class_=f"mark k{style}", stroke_width=width)
        if shapes
        else ""
    )


def legend(names: list[str], x: float, y: float) -> Markup:
    """Draw line, mark and name of each series, side by side."""
    parts = []
    for series, name in enumerate(names):
        parts.append(line([(x, y), (x + 26, y)], series) + marks([(x + 13, y)], series))
        parts.append(text(x + 32, y + 4, name, "t"))
        x += legend_width([name])
    return "".join(parts)


def legend_width(names: list[str]) -> float:
    """Return the width of the legend in pixels."""
    return sum(32 + (len(name) + 3) * CHARACTER for name in names)


def _triangle(x: float, y: float, r: float) -> str:
    return f"M{_px(x)} {_px(y - r)}l{r} {2 * r}h{-2 * r}z"


def _diamond(x: float, y: float, r: float) -> str:
    return f"M{_px(x)} {_px(y - r)}l{r} {r}l{-r} {r}l{-r} {-r}z"


_SHAPES = (_triangle, _diamond)


def _linear_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step)
    return [float(f"{step * i:.6g}") for i in range(first, math.floor(high / step) + 1)]


def _px(value: float) -> str:
    """Round to a whole pixel, which saves bytes: a page has thousands of marks."""
    return f"{value:.0f}"
