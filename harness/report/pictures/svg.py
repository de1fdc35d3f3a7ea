"""SVG elements of the pictures. Colours come from classes of the page's style sheet."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from attnproof.harness.escaping import escape_line
from attnproof.harness.guard import attempt

Markup = str
"""SVG source whose text is already escaped."""

_HATCHES = (("wrong", 5, 45, 1.6), ("stale", 6, 135, 1.0))
"""Class, distance of the lines, angle in degrees and width of each hatching."""
CHARACTER = 7.3
"""Width in px of a character of class "t" (12 px monospace)."""


def tag(name: str, content: Markup = "", **attributes: object) -> Markup:
    """Return an element; `class_` becomes class, any other underscore a hyphen."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(escape_line(_number(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{pairs}>{content}</{name}>" if content else f"<{name}{pairs}/>"


def text(x: float, y: float, content: str, class_: str = "t") -> Markup:
    """Return a line of text with its baseline at y."""
    return tag("text", escape(escape_line(content)), x=x, y=y, class_=class_)


def rect(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    """Return a rectangle."""
    return tag("rect", x=x, y=y, width=width, height=height, class_=class_)


def hatched(x: float, y: float, width: float, height: float, kind: str, prefix: str) -> Markup:
    """Return a rectangle of class `kind` with the hatching `kind` over it."""
    over = tag("rect", x=x, y=y, width=width, height=height, fill=f"url(#{prefix}-{kind})")
    return rect(x, y, width, height, kind) + over


def picture(
    width: float,
    height: float,
    title: str,
    description: str,
    body: Markup,
    prefix: str,
    *,
    hatched: bool = True,
) -> Markup:
    """Return an image with a name and a description for screen readers.

    `prefix` makes the ids unique on a page with several pictures; `hatched` includes the
    definitions of the hatchings.
    """
    patterns = "".join(
        tag(
            "pattern",
            tag("path", d=f"M0 0V{size}", class_=f"hatch-{kind}", stroke_width=line),
            id=f"{prefix}-{kind}",
            width=size,
            height=size,
            patternUnits="userSpaceOnUse",
            patternTransform=f"rotate({angle})",
        )
        for kind, size, angle, line in _HATCHES
        if hatched
    )
    names = tag("title", escape(escape_line(title)), id=f"{prefix}-title")
    names += tag("desc", escape(escape_line(description)), id=f"{prefix}-desc")
    return tag(
        "svg",
        names + (tag("defs", patterns) if patterns else "") + body,
        class_="picture",
        role="img",
        aria_labelledby=f"{prefix}-title",
        aria_describedby=f"{prefix}-desc",
        viewBox=f"0 0 {_number(width)} {_number(height)}",
        width=width,
        height=height,
    )


def drawn(what: str, draw: Callable[[], Markup]) -> Markup:
    """Return the picture that `draw` makes, a paragraph that says why if it raises."""
    return attempt(what, draw, lambda fault: tag("p", escape(escape_line(fault)), class_="soft"))


def _number(value: object) -> str:
    """Round coordinates to a tenth of a pixel, which halves the bytes."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
