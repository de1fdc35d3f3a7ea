"""Escaped text: printable, unambiguous for a shell, and obeyed by nobody."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from attnproof.harness.escaping import (
    escape_line,
    escape_lines,
    escape_tree,
    markdown_block,
    markdown_code,
    markdown_text,
    shell_command,
    shell_path,
)
from tests.harness.hostile import HOSTILE, assert_safe

hostile = pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)


@hostile
def test_a_line_is_one_safe_line(text):
    shown = escape_line(text)
    assert_safe(shown, lines=1)
    assert escape_line(shown) == shown


@hostile
def test_lines_stay_lines(text):
    shown = escape_lines(text)
    assert_safe(shown, lines=text.count("\n") + 1)
    assert escape_lines(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("slot_mapping[3] is 88, größe ✓", "slot_mapping[3] is 88, größe ✓"),
        ("\x1b[1m \u202e \n \r \t", r"\x1b[1m \u202e \n \r \t"),
        ("\ud800 \U000e0001 \xa0", r"\ud800 \U000e0001 \xa0"),
        ("::error::x", r"\x3a:error::x"),
        ("at::Tensor, c10::Error, x[::2]", "at::Tensor, c10::Error, x[::2]"),
        ("see ##[error] and ##vso[a]", r"see #\x23[error] and #\x23vso[a]"),
        ("## heading, #[1]", "## heading, #[1]"),
    ],
)
def test_what_is_harmless_stays_as_it_is(text, shown):
    assert escape_line(text) == shown


def test_lines_keep_tabs_and_lose_carriage_returns_at_their_ends():
    assert escape_lines("a\tb\r\nc\rd\n") == "a\tb\nc\\rd\n"


def test_trees_are_escaped_in_keys_too():
    assert escape_tree({"a\x00": ["\x1b", ("\ud800", 1, None)]}) == {
        "a\\x00": ["\\x1b", ["\\ud800", 1, None]]
    }


@hostile
def test_an_escape_has_the_value_of_the_text_in_a_python_literal(text):
    """So that a copied literal of a case is still the same case."""
    assert eval(escape_line(repr(text))) == text


@hostile
def test_markdown_has_no_markup_left(text):
    for shown in (markdown_text(text), markdown_code(text)):
        assert_safe(shown, lines=1)
    shown = markdown_text(text).replace("<!-- -->", "")
    for mark in "`*<>[]|{}$~!&":
        assert shown.count(mark) == shown.count(f"\\{mark}"), shown
    for link in ("@somebody", "#123", "GH-7", "https://", "www.evil", "a@b"):
        assert link not in markdown_text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("build_slot_mapping took 3.5 s", "build_slot_mapping took 3.5 s"),
        ("_make_metadata __init__", r"\_make_metadata \_\_init\_\_"),
        ("- a", r"\- a"),
        ("1. a", r"1\. a"),
        ("-1 is 2.0", "-1 is 2.0"),
        ("===", r"\==="),
        ("ask @me in #7", r"ask @<!-- -->me in \#<!-- -->7"),
    ],
)
def test_markdown_of_plain_text_stays_readable(text, shown):
    assert markdown_text(text) == shown


@hostile
def test_code_ends_where_it_should(text):
    shown = markdown_code(text)
    ticks = shown[: len(shown) - len(shown.lstrip("`"))]
    inner = shown[len(ticks) : -len(ticks)]
    assert shown.endswith(ticks)
    assert ticks not in inner.replace(ticks + "`", "")
    block = markdown_block(text, "sh").split("\n")
    assert block[0].rstrip("sh") == block[-1]
    assert block[-1] not in block[1:-1]


@pytest.mark.parametrize("text", ["plain", "", "-x", "a b", "it's", "größe", *HOSTILE.values()])
def test_a_shell_reads_back_the_words(text):
    command = shell_command(["printf", "%s|", text, "end"])
    assert_safe(command, lines=1)
    word = text.replace("\x00", "").replace("\ud800", "").replace("\ufffe", "")
    if word == text:
        done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
        assert done.stdout == text.encode("utf-8", "surrogateescape") + b"|end|"


def test_ordinary_words_are_quoted_as_everybody_does():
    words = ["attnproof", "replay", "a b/c.json", "--candidate", "it's.py"]
    assert shell_command(words) == shlex.join(words)


def test_a_path_is_no_option():
    assert shell_path("-rf/x.json") == "./-rf/x.json"
    assert shell_path("a-b") == "a-b"
