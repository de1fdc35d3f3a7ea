"""Messages of the command line: lines on standard output, complaints on standard error."""

from __future__ import annotations

import sys
import traceback

from attnproof.harness.escaping import escape_line, escape_lines


def say(text: str) -> None:
    """Print lines to standard output, and flush it."""
    print(escape_lines(text), flush=True)


def complain(text: object) -> None:
    """Print one line to standard error, after the name of the program."""
    print(f"attnproof: {escape_line(text)}", file=sys.stderr)


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error to standard error."""
    text = "".join(traceback.format_exception(error))
    print(escape_lines(text), end="", file=sys.stderr)
