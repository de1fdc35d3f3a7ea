"""A function of the report that raises costs its part of the report, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from functools import partial

import junitparser
import msgspec
import pytest

from attnproof.harness import report
from attnproof.harness.guard import attempt, collected_faults
from attnproof.harness.report import write_report
from attnproof.harness.report.shared.comparison import as_compared, compare
from attnproof.harness.report.terminal.bench import bench_text
from attnproof.harness.verbs.closing_summary import closing_summary
from tests.harness.report.runs import ORACLES, make_deviation

FILES = {"index.html", "summary.json", "summary.md", "junit.xml", "results.sarif"}
NOT_DRAWN = {
    *("report.write", "shared.files"),
    *("report.formats.schema", "report.formats.summary", "report.formats.summary_part"),
}
"""Modules that write the files, and the data of summary.json."""


def functions():
    """Return every function of the report's modules by its name."""
    by_name = {}
    for info in pkgutil.walk_packages(report.__path__, f"{report.__name__}."):
        module = importlib.import_module(info.name)
        if any(info.name.endswith(name) for name in NOT_DRAWN):
            continue
        for owner in (module, *vars(module).values()):
            if owner is not module and getattr(owner, "__module__", "") != info.name:
                continue
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                plain = inspect.isfunction(value) and value.__module__ == info.name
                if plain and value.__code__.co_filename == module.__file__:
                    place = info.name.removeprefix(f"{report.__name__}.")
                    inside = "" if owner is module else f"{owner.__name__}."
                    by_name[f"{place}:{inside}{name}"] = value
    return by_name


FUNCTIONS = functions()


def raising(*_arguments, **_named):
    raise IndexError("index 7 is out of range")


@pytest.fixture
def everything(failing, sequence, slower):
    """A run with findings of all kinds, known deviations and timings."""
    return msgspec.structs.replace(
        failing,
        base=compare(as_compared(sequence), as_compared(failing), "a base"),
        operations=[*failing.operations, *sequence.operations],
        findings=[*failing.findings, *sequence.findings],
        deviations=[make_deviation("D1", failing.findings[0]), make_deviation("D1")],
        bench=slower.bench,
        reason="a reason",
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_report_is_written_with_its_verdict(name, everything, tmp_path, monkeypatch):
    function = FUNCTIONS[name]
    if function.__code__.co_freevars:
        pytest.skip("a closure cannot be replaced in place")
    monkeypatch.setattr(function, "__code__", raising.__code__)
    faults = write_report(everything, tmp_path, oracles=ORACLES)
    text = attempt("the tables", partial(bench_text, everything), str)
    closing = closing_summary(everything, tmp_path)
    monkeypatch.undo()
    assert {path.name for path in tmp_path.iterdir()} == FILES
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "<title>FAIL" in page
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert (summary["verdict"], len(summary["findings"])) == ("FAIL", 4)
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").count("FAIL")
    assert junitparser.JUnitXml.fromfile(str(tmp_path / "junit.xml")).tests
    assert "\nFAIL (a reason): " in closing
    assert text
    for fault in faults:
        assert "could not be made (IndexError: index 7 is out of range)" in fault
        assert fault in summary["notes"]


def test_one_broken_card_leaves_the_others(everything, tmp_path, monkeypatch):
    from attnproof.harness.report.page import cards

    card = cards._card

    def broken(label, finding, room):
        return raising() if label == "F2" else card(label, finding, room)

    monkeypatch.setattr(cards, "_card", broken)
    (fault,) = write_report(everything, tmp_path, oracles=ORACLES)
    assert fault.startswith("the card F2 could not be made (IndexError: index 7 is out of range)")
    assert fault.endswith("a fault of attnproof and changes no verdict: please report it")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    for finding in everything.findings:
        assert f'id="/finding/{finding.id}"' in page
        assert finding.command in page
    assert page.count("the card F2 could not be made") == 2  # in the header, and on the card


def test_blocks_around_a_block_get_its_faults():
    with collected_faults() as outer:
        with collected_faults() as inner:
            assert attempt("x", raising, len) > 20
        assert attempt("y", lambda: 3, len) == 3
    assert inner == outer
    assert len(inner) == 1
