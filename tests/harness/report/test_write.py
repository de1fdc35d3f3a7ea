"""write_report writes whole files only, and returns the files that it could not write."""

from __future__ import annotations

import sys

import pytest

from attnproof.harness.report import write_report
from tests.harness.report.runs import ORACLES

FILES = {"index.html", "summary.json", "summary.md", "junit.xml", "results.sarif"}


@pytest.mark.parametrize(
    "name", ["passing", "failing", "sequence", "incomplete", "empty", "slower"]
)
def test_writes_every_file(name, request, tmp_path):
    run = request.getfixturevalue(name)
    assert write_report(run, tmp_path, oracles=ORACLES) == []
    assert {file.name for file in tmp_path.iterdir()} == FILES


@pytest.mark.parametrize("name", ["failing", "slower"])
def test_same_run_gives_the_same_bytes(name, request, tmp_path):
    run = request.getfixturevalue(name)
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
        write_report(run, folder, oracles=ORACLES)
    for name in FILES:
        assert (before / name).read_bytes() == (after / name).read_bytes(), name


@pytest.mark.parametrize(
    ("package", "file"), [("jinja2", "index.html"), ("junitparser", "junit.xml")]
)
def test_a_missing_package_costs_one_file(package, file, failing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    for module in ("attnproof.harness.report.page.html", "attnproof.harness.report.formats.junit"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert write_report(failing, tmp_path) == [
        f"{file} was not written: {package} is not installed"
    ]
    assert {path.name for path in tmp_path.iterdir()} == FILES - {file}


def test_a_missing_folder_is_an_error(passing, tmp_path):
    with pytest.raises(FileNotFoundError):
        write_report(passing, tmp_path / "missing")


def test_oracles_are_optional(passing, tmp_path):
    write_report(passing, tmp_path)
    assert "Contract of each oracle" not in (tmp_path / "index.html").read_text("utf-8")
