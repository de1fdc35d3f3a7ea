"""WCAG 2.2 AA: text has a contrast of 4.5 against every ground it stands on, marks have 3."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnproof.harness.report.page import html

STYLE = (Path(html.__file__).parent / "templates" / "colours.css").read_text("utf-8")
GROUNDS = ("ground", "raised", "sunken")
TEXT = [
    *((colour, ground) for colour in ("text", "soft", "link") for ground in GROUNDS),
    *((colour, ground) for colour in ("good", "bad", "open") for ground in GROUNDS),
    *(("text", f"{state}-ground") for state in ("good", "bad", "open", "known")),
    *(("soft", f"{state}-ground") for state in ("good", "bad")),
    ("on-query", "query"),
    *((state, f"{state}-ground") for state in ("good", "bad", "open", "known")),
]
MARKS = [
    ("query", "raised"),
    ("query", "computed"),
    ("strong-line", "raised"),
    ("strong-line", "ground"),
    *((f"series-{number}", ground) for number in range(1, 5) for ground in GROUNDS),
]


def colours(theme):
    by_name = {}
    for name, value in re.findall(r"--([\w-]+): ([^;]+);", STYLE):
        pair = re.findall(r"#[0-9a-f]{6}", value)
        by_name[name] = pair[min(theme, len(pair) - 1)]
    return by_name


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    bright, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast(theme):
    rgb = colours(theme)
    low = [
        (colour, ground, round(contrast(rgb[colour], rgb[ground]), 2))
        for pairs, least in ((TEXT, 4.5), (MARKS, 3))
        for colour, ground in pairs
        if contrast(rgb[colour], rgb[ground]) < least
    ]
    white = ("pass-band", "fail-band", "incomplete-band", "slower-band")
    low += [
        ("white", ground, round(contrast("#ffffff", rgb[ground]), 2))
        for ground in white
        if contrast("#ffffff", rgb[ground]) < 4.5
    ]
    assert not low
