"""Text of values whose class may fail to show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

_MOST_CHARACTERS = 2000
DIGITS = (6, 9, 17)
"""Significant digits of a float: the last ones tell any two apart."""


def utf8(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 lacks, as escapes."""
    return text.encode(errors="backslashreplace").decode()


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return the known name that is most like another one, "" if none is `least` alike, of 1."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=least)), "")


def near_hint(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return a question for the `nearest` known name, to stand before "expected ...", or ""."""
    near = nearest(name, known, least)
    return f"did you mean {near}? " if near else ""


def text_of(value: Any, show: Callable[[Any], str] = repr) -> str:
    """Return the value as text of at most 2,000 characters."""
    try:
        return utf8(str(show(value)))[:_MOST_CHARACTERS]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the method may be a candidate's
        return f"a {type(value).__name__} whose text cannot be made ({type(error).__name__})"


def float_text(value: float, digits: int = DIGITS[0]) -> str:
    """Return a float in few digits; a whole number ends in ".0", as it is no integer."""
    text = f"{value:.{digits}g}"
    return f"{text}.0" if text.removeprefix("-").isdigit() else text


def float_texts(expected: float, got: float) -> tuple[str, str]:
    """Return two floats in six digits, or in as many as make two different ones differ."""
    pairs = [(float_text(expected, digits), float_text(got, digits)) for digits in DIGITS]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
