"""Texts that a terminal, a CI system, Markdown, XML or HTML would obey or cannot hold."""

from __future__ import annotations

HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "title of the terminal": "\x1b]0;owned\x07",
    "controls": "\x00\x07\x08\x0b\x0c\x7f\x9b2J",
    "carriage return": "100 %\rPASS",
    "lines": "first\nPASS: 0 findings\r\nlast",
    "separators": "a\x85b\u2028c\u2029d",
    "bidi": "\u202eevil\u202c \u2066x\u2069 \u200f\u061c",
    "invisible": "a\u200bb\ufeffc\u00add\U000e0041",
    "surrogate": "\ud800 \udcff",
    "no characters": "\ufffe\uffff",
    "GitHub": "\n::error file=x::y\n  ::add-mask::z ::set-output name=a::b",
    "old GitHub": "##[error]x",
    "Azure": "##vso[task.complete result=Succeeded]",
    "TeamCity": "##teamcity[testFinished name='x']",
    "rich": "[bold red]x[/] [link=http://evil.example]y[/link] :smile: [/nothing]",
    "HTML": "</script></style><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\"'",
    "template": "{{ 7 * 7 }}{% raw %}",
    "XML": "]]> <!-- -- --> <![CDATA[ x ]]> &bogus;",
    "table": "a | b || c \\| d",
    "code": "` `` ```\n```\n# heading",
    "links": "[x](javascript:alert(1)) <http://evil.example> https://evil.example www.evil.example",
    "mentions": "@somebody #123 GH-7 a@b.example",
    "shell": '\'; rm -rf "$HOME" `id` $(id) \\ -x',
}
COMMANDS = ("::error", "::add-mask", "::set-output", "##[", "##vso[", "##teamcity[")


def assert_safe(text: str, *, lines: int | None = None) -> None:
    """Check that the text is printable, and that no line of it is a command of a CI system."""
    if lines is not None:
        assert len(text.split("\n")) == lines, text
    for line in text.split("\n"):
        assert line.replace("\t", "").isprintable(), ascii(line)
        assert not line.lstrip().startswith("::"), line
        assert not any(command in line for command in COMMANDS if command[0] == "#"), line
