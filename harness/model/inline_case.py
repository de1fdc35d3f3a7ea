"""A case file on one line, as comments and annotations hold it."""

from __future__ import annotations

import json

import msgspec

from attnproof.harness.model.case import Case

SCHEMA = "attnproof.case/1"
"""Schema of case files."""


def inline_case(case: Case) -> str:
    """Return a case file on one line of ASCII, which `attnproof replay -` reads out of any text."""
    fields = {"schema": SCHEMA, "case": msgspec.to_builtins(case)}
    text = json.dumps(fields, separators=(",", ":"))
    # Only strings have these; CI systems obey lines that do.
    return text.replace("::", ":\\u003a").replace("##", "#\\u0023")
