"""The section on the strength of the checks."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.model.strength import (
    KnownBug,
    MutationScore,
    OperationScore,
    Recall,
    Strength,
    Survivor,
)
from attnproof.harness.report.formats.summary import summarize
from attnproof.harness.report.page.html import render_html
from tests.harness.report.runs import ORACLES


def operation(name, killed, survived, **fields):
    usual = {"timed_out": 0, "equivalent": 0, "oracles": {"equality": killed}}
    return OperationScore(operation=name, killed=killed, survived=survived, **usual | fields)


def bug(thread, found):
    return KnownBug(
        thread=thread,
        operation="build_slot_mapping",
        mistake="A block is read twice.",
        shown_by="a crash",
        runs=2,
        found=found,
        oracles=("equality",) if found else (),
        requests=1 if found else 0,
        tokens=7 if found else 0,
        seconds=2.5,
    )


SURVIVOR = Survivor(
    operation="build_slot_mapping",
    function="slots",
    place="slot_mapping.py:41",
    operator="comparison",
    change="- a < b\n- for <script>\n+ pass\n",
    cases=56,
    reason="",
)
MUTANTS = MutationScore(
    path="reports/mutants/mutants.json",
    candidate="optimized",
    score=0.9,
    operations=[operation("good", 9, 0), operation("poor", 3, 2), operation("empty", 0, 0)],
    survivors=[SURVIVOR],
)
RECALL = Recall(
    path="here.json", bugs=[bug("engine#1", 2), bug("engine#2", 0)], correct=4, alarms=1
)


@pytest.fixture
def section(passing):
    def shown(**parts):
        run = msgspec.structs.replace(passing, strength=Strength(**parts))
        page = render_html(run, ORACLES)
        return page[page.index('<section id="strength"') :].partition("</section>")[0]

    return shown


@pytest.mark.parametrize(
    "parts", [{}, {"mutants": MUTANTS, "recall": RECALL}], ids=["none", "both"]
)
def test_the_section(parts, section, snapshot):
    assert section(**parts) == snapshot


def test_many_survivors_are_counted(section):
    many = msgspec.structs.replace(MUTANTS, survivors=[SURVIVOR] * 70)
    text = section(mutants=many)
    assert text.count("+ pass") == 60
    assert "10 more survivors in reports/mutants/mutants.json." in text


def test_the_summary_has_the_same_numbers(passing):
    run = msgspec.structs.replace(passing, strength=Strength(mutants=MUTANTS, recall=RECALL))
    strength = msgspec.to_builtins(summarize(run))["strength"]
    assert strength["mutants"]["score"] == 0.9
    assert strength["mutants"]["survivors"] == 1
    assert [operation["operation"] for operation in strength["mutants"]["operations"]][1] == "poor"
    assert strength["recall"]["alarms"] == 1
    assert msgspec.to_builtins(summarize(passing))["strength"] == {"mutants": None, "recall": None}
