"""Text from candidates, files and arguments, made safe for each kind of output.

The rule is the same everywhere: hidden characters are shown as the escapes of a Python string
literal, such as `\\x1b`, `\\u202e` and `\\n`, and nothing is dropped. Escaping twice changes
nothing. What a line of output needs is `escape_line`; what keeps its line breaks, such as a
traceback, `escape_lines`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

# GitHub obeys a line whose first word starts with "::"; GitHub, Azure and TeamCity obey "##[",
# "##vso[" and "##teamcity[" anywhere in a line. So an indentation alone protects nothing.
_CI_COMMAND = re.compile(r"(?<!\S):(?=:[A-Za-z])|(?<=#)#(?=\w*\[)")
_MARKDOWN = re.compile(
    r"[\\`*{}\[\]<>#|~!&$]"
    r"|(?<![^\W_])_|_(?![^\W_])"  # not inside of a word, such as slot_mapping
    r"|^[-+=](?=[-+=]*(?:\s|$))|^\d+(?=[.)](?:\s|$))"  # a list, or the line under a heading
)
# GitHub makes links of these after Markdown's escapes are gone; an empty comment separates them.
_REFERENCE = re.compile(r"@|#(?=\d)|GH(?=-\d)|:(?=//)|www(?=\.)", re.IGNORECASE)


def escape_line(text: object) -> str:
    """Return the text as a single line of printable characters that no CI system obeys."""
    line = str(text)
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return _CI_COMMAND.sub(_hexadecimal, line)


def escape_lines(text: object) -> str:
    """Return the text with its line breaks and tabs, each line as `escape_line` returns it."""
    lines = str(text).replace("\r\n", "\n").split("\n")
    return "\n".join("\t".join(map(escape_line, line.split("\t"))) for line in lines)


def escape_tree(value: Any) -> Any:
    """Apply `escape_lines` to every string of nested dicts and lists."""
    if isinstance(value, str):
        return escape_lines(value)
    if isinstance(value, dict):
        return {escape_tree(key): escape_tree(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [escape_tree(item) for item in value]
    return value


def markdown_text(text: object) -> str:
    """Return a line of Markdown that shows the text: no markup, link, mention or HTML."""
    line = " ".join(escape_line(text).split())
    line = _MARKDOWN.sub(lambda match: _backslashed(match[0]), line)
    return _REFERENCE.sub(r"\g<0><!-- -->", line)


def markdown_code(text: object) -> str:
    """Return inline code; not for tables, where a bar would end the cell."""
    line = " ".join(escape_line(text).split())
    ticks = "`" * (_longest_ticks(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{pad}{line}{pad}{ticks}" if line else "(empty)"


def markdown_block(text: object, language: str) -> str:
    """Return a fenced block of code."""
    block = escape_lines(text)
    ticks = "`" * max(3, _longest_ticks(block) + 1)
    return f"{ticks}{language}\n{block}\n{ticks}"


def shell_command(words: Sequence[str]) -> str:
    """Return a command line for a POSIX shell, on one line of printable characters.

    A word that these cannot hold is in the form $'...' of bash, zsh and ksh.
    """
    return " ".join(map(_shell_word, words))


def shell_path(path: object) -> str:
    """Return a path as an argument that no command takes for an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def _shell_word(word: str) -> str:
    if escape_line(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(map(_ansi_c, word)) + "'"


def _ansi_c(character: str) -> str:
    """Return a character as it stands between $' and '."""
    if character.isprintable() and character not in "\\':#":
        return character
    # A surrogate is a byte of a file name that is not UTF-8.
    is_byte = "\udc80" <= character <= "\udcff"
    errors = "surrogateescape" if is_byte else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", errors))


def _hexadecimal(match: re.Match[str]) -> str:
    return f"\\x{ord(match[0]):02x}"


def _backslashed(text: str) -> str:
    # A backslash before a digit is a backslash; the mark after the number makes it a list.
    return f"{text}\\" if text.isdecimal() else f"\\{text}"


def _longest_ticks(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
