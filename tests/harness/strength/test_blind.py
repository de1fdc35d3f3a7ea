"""Tests of `tools/blind.py`, which measures how many wrong backends of a folder are found."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "blind.py"
WRONG = '''"""is_block_tables_empty: {text}."""


def is_block_tables_empty(block_tables):
    return {value}
'''
RIGHT = "block_tables is None or all(table is None for table in block_tables.values())"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("blind", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_rows_and_rates(tool, tmp_path, capsys):
    values = {"always": "True", "wrong | only if full": f"not ({RIGHT})"}
    for number, (text, value) in enumerate(values.items()):
        (tmp_path / f"{number}.py").write_text(WRONG.format(text=text, value=value))
    assert tool.main([str(tmp_path), "--", "--examples", "20"]) == 0
    head, _, *rows, _, last = capsys.readouterr().out.splitlines()
    assert head.startswith("| backend | operation | mistake | result |")
    assert rows[0].startswith("| 0 | is_block_tables_empty | always. | found | the opposite")
    assert "wrong \\| only if full" in rows[1]
    assert last.endswith("0 missed, 0 open; found of those that are no advice: 100%")
    (tmp_path / "2.py").write_text(WRONG.format(text="right", value=RIGHT))
    assert tool.main([str(tmp_path), "--examples", "20"]) == 1
    assert "1 missed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not begin with an operation and a colon"),
        ('"""none: nothing."""', "attnproof: candidate a offers none"),
    ],
)
def test_what_is_no_wrong_backend_is_refused(tool, tmp_path, text, message):
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(SystemExit, match=message):
        tool.main([str(tmp_path)])


def test_an_empty_folder_is_refused(tool, tmp_path):
    with pytest.raises(SystemExit, match=r"has no \*\.py"):
        tool.main([str(tmp_path)])
