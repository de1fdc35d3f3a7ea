"""Text of values whose class may fail to show them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MOST_CHARACTERS = 2000


def utf8(text: str) -> str:
    """Return the text with lone surrogates, which UTF-8 lacks, as escapes."""
    return text.encode(errors="backslashreplace").decode()


def text_of(value: Any, show: Callable[[Any], str] = repr) -> str:
    """Return the value as text of at most 2,000 characters."""
    try:
        return utf8(str(show(value)))[:_MOST_CHARACTERS]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the method may be a candidate's
        return f"a {type(value).__name__} whose text cannot be made ({type(error).__name__})"
