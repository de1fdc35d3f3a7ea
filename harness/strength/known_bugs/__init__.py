"""Bugs that shipped, planted again: each module is a candidate that repeats one of them.

Every module offers one operation and says in `BUG` which bug of the public record it
repeats and how the harness must name it. Run one with
`attnproof verify --candidate attnproof.harness.strength.known_bugs.k01_computed_tokens`.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from attnproof.harness.strength.known_bugs.bug import Bug


def all_bugs() -> dict[str, Bug]:
    """Every planted bug by the name of its module."""
    found = {}
    for module in iter_modules(__path__):
        if module.name.startswith("k"):
            name = f"{__name__}.{module.name}"
            found[name] = import_module(name).BUG
    return found
