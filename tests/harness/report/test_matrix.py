"""The matrix: every pair is in one state, and every missing verdict is listed."""

from __future__ import annotations

from attnproof.harness.model.run import OracleCount
from attnproof.harness.oracles import CONTRACTS
from attnproof.harness.report.page.matrix import build_matrix, skips
from tests.harness.report.runs import ORACLES, make_finding, make_result, make_run


def cells(matrix, operation, candidate="optimized"):
    (row,) = [
        row
        for group in matrix.groups
        if group.name == operation
        for row in group.rows
        if row.candidate == candidate
    ]
    return dict(zip(matrix.oracles, row.cells, strict=False))


def test_failed_cells_link_to_their_findings(failing):
    matrix = build_matrix(failing, ORACLES)
    assert matrix.oracles == (*ORACLES, "process")
    cell = cells(matrix, "build_slot_mapping")["equality"]
    assert (cell.state, cell.words) == ("FAIL", "12 of 400")
    assert [(link.label, link.href) for link in cell.links] == [("F1", "#/finding/000000000001")]
    # An oracle that counted nothing but has a finding has failed.
    crash = cells(matrix, "build_slot_mapping")["process"]
    assert (crash.state, crash.words, crash.links[0].label) == ("FAIL", "failed", "F3")


def test_states_are_summed(failing):
    totals = {total.state: total for total in build_matrix(failing, ORACLES).totals}
    assert {state: total.pairs for state, total in totals.items()} == {
        "PASS": 1,
        "FAIL": 2,
        "DEVIATES": 0,
        "UNVERIFIED": 1,
        "NOT OFFERED": 1,
    }
    assert totals["NOT OFFERED"].by_oracle == (1, 1, 1, 1, 1)
    assert totals["FAIL"].by_oracle == (2, 0, 0, 0, 1)


def test_an_oracle_without_checks_is_unverified_not_passed(incomplete):
    matrix = build_matrix(incomplete, ORACLES)
    padding = cells(matrix, "is_block_tables_empty")["padding"]
    assert (padding.state, padding.reason) == ("UNVERIFIED", "takes no tensors")
    assert cells(matrix, "is_block_tables_empty")["purity"].state == "NO CHECK"


def test_a_pair_without_a_verdict_shows_its_reason_once(incomplete):
    (group,) = [
        g for g in build_matrix(incomplete, ORACLES).groups if g.name == "split_attn_metadata"
    ]
    assert group.rows[0].cells == ()
    assert group.rows[0].reason == "time ran out"


def test_skips_are_grouped_by_reason(incomplete):
    entries = {skip.reason: skip.entries for skip in skips(build_matrix(incomplete, ORACLES))}
    assert entries == {
        "takes no tensors": ("is_block_tables_empty · optimized (cpu): padding",),
        "time ran out": ("split_attn_metadata · optimized (cpu)",),
    }


def test_zero_checks_never_pass():
    run = make_run("PASS", [make_result("a", oracles={"equality": OracleCount()})])
    cell = cells(build_matrix(run, ORACLES), "a")["equality"]
    assert (cell.state, cell.reason) == ("UNVERIFIED", "no check was made")


def test_the_consumer_comes_after_the_invariants():
    names = ("purity", "consumer", "equality", "invariants")
    counts = {name: OracleCount(checks=400) for name in names} | {
        "consumer": OracleCount(checks=400, failed=7)
    }
    finding = make_finding(1, oracle="consumer", field="block_table_tensor")
    run = make_run("FAIL", [make_result("build_slot_mapping", oracles=counts)], findings=[finding])
    matrix = build_matrix(run, CONTRACTS)
    assert matrix.oracles == ("equality", "invariants", "consumer", "purity")
    cell = cells(matrix, "build_slot_mapping")["consumer"]
    assert (cell.state, cell.words, cell.links[0].label) == ("FAIL", "7 of 400", "F1")


def test_an_empty_run_has_an_empty_matrix(empty):
    matrix = build_matrix(empty, ORACLES)
    assert matrix.groups == ()
    assert [total.pairs for total in matrix.totals] == [0, 0, 0, 0, 0]
