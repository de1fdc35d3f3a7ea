"""Known deviations are separate from failures in every format, and stale ones are named."""

from __future__ import annotations

import msgspec

from attnproof.harness.model.run import OracleCount
from attnproof.harness.report.page.deviations import build_deviations
from attnproof.harness.report.page.html import render_html
from attnproof.harness.report.page.matrix import build_matrix
from attnproof.harness.report.shared.deviations import deviation_line, deviations_title
from tests.harness.report.runs import ORACLES, make_finding


def test_the_line_of_the_terminal(known):
    there, stale = known.deviations
    assert deviation_line(there) == (
        "KNOWN  build_slot_mapping [optimized] E2: counts <padded> rows; 31 cases; "
        "attnproof replay cases/x.json --candidate vllm"
    )
    assert deviation_line(stale) == (
        "STALE  build_slot_mapping [optimized] E9: gone; no case shows it in 0.11.2: "
        "correct its versions, or drop it"
    )


def test_cards_of_a_shown_and_of_a_stale_deviation(known):
    there, stale = build_deviations(known)
    assert (there.label, there.age) == ("D1", "known since 2024-12-03, 30 days")
    assert there.card is not None
    assert there.card.batch.startswith("<svg")
    assert (stale.label, stale.age, stale.card) == ("D2", "", None)
    assert deviations_title(known.deviations) == "2 known deviations, 1 of them stale"


def test_the_page_has_a_section_a_link_and_words(known):
    page = render_html(known, ORACLES)
    assert '<section id="deviations"' in page
    assert "E2: Counts &lt;padded&gt; rows" in page
    assert "Reference: SPEC &lt;2&gt;" in page
    assert "<strong>Stale:</strong>" in page
    assert f'href="#/finding/{known.deviations[0].shown.id}" aria-label="Finding D1"' in page


def test_the_matrix_distinguishes_known_from_verified(known):
    matrix = build_matrix(known, ORACLES)
    row = matrix.groups[0].rows[0]
    cell = row.cells[matrix.oracles.index("equality")]
    assert (row.verdict, cell.state, cell.words) == ("DEVIATES", "DEVIATES", "31 of 400 known")
    assert cell.links[0].label == "D1"
    totals = {total.state: total.pairs for total in matrix.totals}
    assert (totals["PASS"], totals["DEVIATES"]) == (1, 1)


def test_a_failure_comes_before_a_known_deviation(known):
    first, *others = known.operations
    counts = first.oracles | {"equality": OracleCount(checks=400, failed=3, known=31)}
    failed = msgspec.structs.replace(first, verdict="FAIL", oracles=counts)
    failing = msgspec.structs.replace(
        known, findings=[make_finding(8)], operations=[failed, *others]
    )
    matrix = build_matrix(failing, ORACLES)
    cell = matrix.groups[0].rows[0].cells[matrix.oracles.index("equality")]
    assert (cell.state, [link.label for link in cell.links]) == ("FAIL", ["F1", "D1"])
