"""Functions of a candidate whose names are nearly those of operations it does not offer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from types import FunctionType
from typing import Any

from attnproof import reference
from attnproof.harness.model.text import nearest

_ALIKE = 0.85
"""Least similarity of two names, of 1, that is taken for a slip of the pen."""
_SMALL_WORDS = ("and", "to", "of", "with", "for", "by")
_LEAST_LETTERS, _LEAST_WORDS = 4, 2
"""Least letters of an abbreviation, and least words that it stands for."""
_MOST_ABBREVIATED = 3


def misspelt(module: Any, absent: Iterable[str]) -> dict[str, str]:
    """Return the candidate's names by the absent operations that they resemble or abbreviate.

    Only functions and classes that the candidate defines itself count.
    """
    names = list(absent)
    misspellings: dict[str, str] = {}
    abbreviations: dict[str, str] = {}
    for own, value in vars(module).items():
        is_own = type(value) is FunctionType or inspect.isclass(value)
        if not is_own or value.__module__ != module.__name__ or hasattr(reference, own):
            continue
        near = nearest(own, names, _ALIKE)
        if near:
            misspellings.setdefault(near, own)
        elif not own.startswith("_"):
            fitting = [name for name in names if _abbreviates(own, name)]
            if fitting:
                near = max(fitting, key=lambda name: _parameters_in_common(value, name))
                abbreviations.setdefault(near, own)
    return dict([*abbreviations.items()][:_MOST_ABBREVIATED]) | misspellings


def _abbreviates(own: str, name: str) -> bool:
    """True if a name is written of the first letters of another one's words, in their order."""
    letters = own.replace("_", "").lower()
    words = [word for word in name.lower().split("_") if word not in _SMALL_WORDS and word]
    # Of the word "abc": (a(?:b(?:c)?)?)?
    pattern = "".join(f"({'(?:'.join(word)}{')?' * len(word)}" for word in words)
    match = re.fullmatch(pattern, letters) if len(letters) >= _LEAST_LETTERS else None
    return match is not None and sum(map(bool, match.groups())) >= _LEAST_WORDS


def _parameters_in_common(function: Any, name: str) -> int:
    """Return the number of parameters that a function and an operation have in common."""
    try:
        ours, theirs = map(inspect.signature, (getattr(reference, name), function))
    except (TypeError, ValueError, AttributeError):
        return 0
    return len(ours.parameters.keys() & theirs.parameters.keys())
