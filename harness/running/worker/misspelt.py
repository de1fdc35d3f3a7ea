"""Functions of a candidate whose names are nearly those of operations it does not offer."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import FunctionType
from typing import Any

from attnproof import reference

_ALIKE = 0.85
"""Least similarity of two names, of 1, that is taken for a slip of the pen."""


def misspelt(module: Any, absent: Iterable[str]) -> dict[str, str]:
    """Return the candidate's names by the absent operations that they resemble.

    Only functions that the candidate defines itself count.
    """
    names = list(absent)
    misspellings: dict[str, str] = {}
    for own, value in vars(module).items():
        if type(value) is not FunctionType or value.__module__ != module.__name__:
            continue
        near = get_close_matches(own, names, n=1, cutoff=_ALIKE)
        if near and not hasattr(reference, own):
            misspellings.setdefault(near[0], own)
    return misspellings
