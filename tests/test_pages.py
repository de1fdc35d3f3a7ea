"""Runs the commands on pages of the documents, and compares the output with the pages."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import Forked

DOCS = Path(__file__).parents[1] / "docs"
_BLOCK = re.compile(r"^```(python|toml|json|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COUNTED = r"(?:of|cases?|failed|advice|checks?|findings?|drawn|edge|steps|unverified|s|operations)"
_FIGURE = re.compile(rf"\d[\d,.]*(?= {_COUNTED}\b)|(?<=\()\d+(?= cases/s)|\bnone(?= of \d)")
FILES = {
    "backend.py": "def slice_query_start_locs(query_start_loc, request_slice): ...\n",
    "broken.py": "import not_there\n",
    "empty.py": "",
    "known.toml": '[[deviation]]\nid = "a"\n',
}
"""Files that the pages on messages name."""


def normalised(line: str) -> str:
    """Return the line without the figures that differ from run to run."""
    return re.sub(r"\s+", " ", _FIGURE.sub("N", line)).strip()


def matches(shown: list[str], printed: list[str]) -> bool:
    """True if `printed` is as on the page, where "..." stands for any lines."""
    if not shown:
        return not printed
    if shown[0] == "...":
        return any(matches(shown[1:], printed[start:]) for start in range(len(printed) + 1))
    return bool(printed) and shown[0] == printed[0] and matches(shown[1:], printed[1:])


def commands(block: str) -> list[tuple[list[str], list[str]]]:
    """Return each command of a block with the lines that it prints."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    split = [part.rstrip("\n").split("\n") for part in parts]
    return [(shlex.split(lines[0]), list(map(normalised, lines[1:]))) for lines in split]


def exit_codes(page: str, folder: Path, attnproof: Forked) -> list[int]:
    """Type the commands of a page in the folder, compare outputs; return the exit codes.

    A block of Python is `backend.py`, or the file that its first line names, as one of TOML is; one
    of JSON has the name of its definition.
    """
    codes = []
    for kind, text in _BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        if kind in ("python", "toml"):
            named = re.match(r"# ([\w/]+\.(?:py|toml))\n", text)
            file = folder / (named[1] if named else "backend.py")
            if file.parent != folder:  # of a package
                file.parent.mkdir(exist_ok=True)
                (file.parent / "__init__.py").touch()
            file.write_text(text, encoding="utf-8")
            continue
        if kind == "json":
            (folder / f"{json.loads(text)['name']}.json").write_text(text, encoding="utf-8")
            continue
        for (program, *arguments), shown in commands(text):
            assert program == "attnproof"
            done = attnproof(*arguments, cwd=folder)
            codes.append(done.returncode)
            output = done.stderr + done.stdout
            assert matches(shown, list(map(normalised, output.splitlines()))), output
    return codes


@pytest.mark.slow
def test_the_quickstart_goes_from_red_to_green(attnproof, tmp_path):
    assert exit_codes("quickstart.md", tmp_path, attnproof) == [1, 1, 0, 0, 1]


@pytest.mark.slow
def test_an_own_operation_goes_from_nothing_to_a_finding(attnproof, tmp_path):
    assert exit_codes("operations.md", tmp_path, attnproof) == [0, 2, 1, 1, 2]


@pytest.mark.slow
def test_the_mistakes_of_connector_manager_builder_and_state_are_found(attnproof, tmp_path):
    assert exit_codes("connectors.md", tmp_path, attnproof) == [1, 1, 1, 1]


@pytest.mark.slow
def test_definitions_of_the_page_are_accepted(attnproof, tmp_path):
    blocks = _BLOCK.findall((DOCS / "operations.md").read_text(encoding="utf-8"))
    texts = [text for _, text in blocks if "@operation" in text and "# bad.py" not in text]
    for number, text in enumerate(texts):
        (tmp_path / f"ops_{number}.py").write_text(text, encoding="utf-8")
    options = [f"--operations=ops_{number}.py" for number in range(len(texts))]
    done = attnproof("list", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("token_positions", "span_lengths", "first_pages", "FreeBlocks"):
        assert name in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "codes"), [("troubleshooting.md", [2] * 8), ("devices.md", [2, 3])]
)
def test_messages_are_as_on_the_page(page, codes, attnproof, tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert exit_codes(page, tmp_path, attnproof) == codes


def test_figures_are_ignored_and_results_are_not():
    line = "FAIL x 318 cases, 140 failed, 2,846 checks, 3.0 s (108 cases/s)"
    assert normalised(line) == "FAIL x N cases, N failed, N checks, N s (N cases/s)"
    assert normalised("none of 15 edge cases") == normalised("2 of 17 edge cases")
    assert normalised("result[0] is 1, expected 0") == "result[0] is 1, expected 0"


def test_dots_stand_for_any_lines():
    assert matches(["a", "...", "c"], ["a", "b", "b", "c"])
    assert not matches(["a", "...", "c"], ["a", "b"])
    assert not matches(["a"], ["b"])
