"""The folder of a report: files that no run wrote are never replaced."""

from __future__ import annotations

import pytest

from attnproof.harness.running.errors import UsageError
from attnproof.harness.verbs.output import Output

SUMMARY = '{\n "schema": "attnproof.summary/1"\n}\n'


@pytest.mark.parametrize(
    "name", ["index.html", "summary.md", "bench.json", "cases/golden.json", "incomplete/junit.xml"]
)
def test_a_file_of_the_user_is_refused(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(UsageError, match=f"did not write, such as {file}; name another folder"):
        Output(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]


def test_a_file_of_the_user_beside_the_cases_of_a_run_is_refused(tmp_path):
    (tmp_path / "summary.json").write_text(SUMMARY)
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases" / "0123456789ab.json").write_text("{}")
    Output(tmp_path).discard()
    (tmp_path / "cases" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        Output(tmp_path)


def test_an_earlier_report_and_other_files_are_accepted(tmp_path):
    (tmp_path / "summary.json").write_text(SUMMARY)
    (tmp_path / "index.html").write_text("")
    (tmp_path / "README.md").write_text("mine")
    Output(tmp_path).discard()
    assert (tmp_path / "README.md").read_text() == "mine"


def test_hypothesis_leaves_nothing_in_the_folder(attnproof, tmp_path):
    words = "verify --candidate reference --steps 0 --ops is_block_tables_empty --examples 9"
    done = attnproof(*words.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / ".hypothesis").exists()
