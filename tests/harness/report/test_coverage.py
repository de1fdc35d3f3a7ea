"""Coverage of the input space: counts, gaps, summary.json, the section of the page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import msgspec
import numpy as np
import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.coverage.features import cells_of
from attnproof.harness.model.case import Case
from attnproof.harness.report.formats.coverage_summary import summarize_coverage
from attnproof.harness.report.page.coverage import build_inputs
from attnproof.harness.report.page.html import render_html
from attnproof.harness.report.shared.coverage import CELLS, PAIRS, build_coverage
from tests.harness.report.runs import ORACLES, make_result, make_run

SMALL = make_batch([1, 1], [3, 3], 4)
LONG = make_batch([1, 1], [3, 5000], 4)
MANY = make_batch([1] * 9, [3] * 9, 4)
ODD = make_batch([4], [0], 3)


def counted(*batches, times=1):
    return {f"{cells_of(Case('op', batch)):x}": times for batch in batches}


def number(words):
    return next(cell.number for cell in CELLS if cell.words == words)


@pytest.fixture
def covered():
    """Results of two operations; tests of the first one lack long contexts and many requests."""
    own = {"fuzz": counted(SMALL, times=7), "boundary": counted(ODD), "trace": counted(LONG, MANY)}
    other = {"fuzz": counted(SMALL, LONG), "trace": counted(SMALL)}
    return [
        make_result("build_slot_mapping", features=own),
        make_result("split_attn_metadata", features=other),
    ]


def words_of(coverage):
    return {tuple(cell.words for cell in gap.cells): gap for gap in coverage.gaps}


def test_cases_are_counted_by_cell_and_by_pair(covered):
    coverage = build_coverage(covered)
    assert coverage.operations == 2
    small, odd = number("requests: 2 to 7"), number("block size: no power of 2")
    assert coverage.by_origin["fuzz"][small] == 7 + 2
    assert coverage.by_origin["boundary"][odd] == 1
    assert coverage.by_origin["trace"][small] == 1 + 1
    decodes = number("kinds of requests: decodes")
    assert coverage.tested[small, decodes] == coverage.tested[decodes, small] == 9
    assert coverage.tested[small, odd] == 0
    assert coverage.real[number("requests: 8 to 31"), decodes] == 1


def test_gaps_are_cells_of_real_batches_that_no_test_of_an_operation_fills(covered):
    gaps = words_of(build_coverage(covered))
    many = gaps["requests: 8 to 31",]
    assert many.nowhere
    assert many.operations == ("build_slot_mapping",)
    assert many.cases == 1
    assert not gaps["longest context: 1,024 to 8,191",].nowhere
    assert ("requests: 2 to 7",) not in gaps


def test_a_pair_is_a_gap_only_if_both_of_its_cells_are_tested():
    # Decodes are tested, and blocks of size 3, but not together.
    real = {"recorded": counted(make_batch([1], [7], 3))}
    tests = {"fuzz": counted(SMALL, make_batch([1], [7], 4)), "boundary": counted(ODD)}
    result = make_result("build_slot_mapping", features=real | tests)
    gaps = words_of(build_coverage([result]))
    assert ("kinds of requests: decodes", "block size: no power of 2") in gaps
    assert ("kinds of requests: decodes",) not in gaps
    # No test has a context that ends one token behind an edge, alone or with anything else.
    behind = "context ends in a block: one behind"
    assert [words for words in gaps if behind in words] == [(behind,)]


def test_candidates_of_an_operation_count_together(covered):
    tested = {"fuzz": counted(MANY, LONG)}
    more = make_result("build_slot_mapping", candidate="other", features=tested)
    assert not build_coverage([*covered, more]).gaps


def test_without_cases_there_is_no_coverage():
    assert build_coverage([make_result("build_slot_mapping", "NOT OFFERED")]) is None
    assert summarize_coverage([]) is None


def test_without_real_batches_there_are_no_gaps():
    coverage = build_coverage([make_result("x", features={"fuzz": counted(SMALL)})])
    assert coverage.operations == 0
    assert not coverage.gaps
    assert coverage.num_pairs == (0, 0)


def test_the_summary_names_features_and_gaps(covered):
    summary = msgspec.to_builtins(summarize_coverage(covered))
    requests = next(feature for feature in summary["features"] if feature["key"] == "requests")
    cases = {value["value"]: value["cases"] for value in requests["values"]}
    assert cases["2 to 7"] == {"fuzz": 9, "trace": 2}
    assert cases["8 to 31"] == {"trace": 1}
    assert {
        "values": {"requests": "8 to 31"},
        "operations": ("build_slot_mapping",),
        "cases": 1,
        "nowhere": True,
    } in summary["gaps"]
    assert summary["pairs_tested"] < summary["pairs_real"]
    assert summary["more_gaps"] == 0


@pytest.fixture
def shown(covered):
    return make_run("PASS", covered)


def test_a_value_has_a_glyph_and_words_by_who_has_it(shown):
    section = build_inputs(shown)
    states = {
        (feature.title, value.name): value.state.key
        for feature in section.features
        for value in feature.values
    }
    assert states["requests", "2 to 7"] == "seen"
    assert states["requests", "8 to 31"] == "unseen"
    assert states["requests", "1"] == "tested"
    assert states["requests", "0"] == "empty"
    assert states["longest context", "1,024 to 8,191"] == "partly"
    assert ("ranks", "1") not in states


def test_the_map_has_a_mark_for_each_pair_of_engine_steps(shown):
    section = build_inputs(shown)
    svg = ET.fromstring(section.chart.svg)
    marks = {path.get("class"): path.get("d") for path in svg.iter("path")}
    assert marks["map-unseen"].count("M") == marks["map-unseen"].count("l5 5")
    coverage = build_coverage(shown.operations)
    with_diagonal = PAIRS | np.eye(len(CELLS), dtype=bool)
    unseen = (coverage.real > 0) & (coverage.tested == 0) & with_diagonal
    assert marks["map-unseen"].count("M") == int(unseen.sum())
    assert all(len(row) == len(section.chart.table.head) for row in section.chart.table.rows)
    assert {child.tag for child in svg} >= {"title", "desc"}


def test_the_gaps_are_named_in_a_table(shown):
    page = render_html(shown, ORACLES)
    section = page[page.index('<section id="inputs"') :].partition("</section>")[0]
    assert "requests: 8 to 31" in section
    assert "✕" in section
    assert "engine steps have it and no test has" in section
    assert section.count("<svg") == 1
    assert "style=" not in section


def test_without_engine_steps_the_section_says_how_to_get_some():
    tests = make_result("build_slot_mapping", features={"fuzz": counted(SMALL)})
    page = render_html(make_run("PASS", [tests]), ORACLES)
    assert "No engine step was run" in page
    assert "--recorded" in page


def test_without_counted_features_the_section_is_one_line(passing):
    assert "No features of inputs were counted." in render_html(passing, ORACLES)
