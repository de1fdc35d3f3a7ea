"""Runs that several tests of the report share."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.model.case import Case
from attnproof.harness.model.run import OracleCount, Run
from attnproof.harness.model.timing import BaselineResult
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report.shared.comparison import as_compared, with_base
from tests.harness.report import benchmarks
from tests.harness.report.runs import (
    CHECKOUT,
    MIXED,
    make_deviation,
    make_difference,
    make_finding,
    make_result,
    make_run,
    make_sequence_finding,
    make_timed_run,
    with_bench,
)


@pytest.fixture
def timed() -> Run:
    """A timed run without a baseline."""
    return make_timed_run("PASS", benchmarks.bench())


@pytest.fixture
def slower() -> Run:
    """A run with a slower timing, one with another allocation, and a history."""
    bench = benchmarks.compared(benchmarks.bench())
    history = [benchmarks.past(bench, "first", 2.0), benchmarks.past(bench, "second", 1.5)]
    bench = msgspec.structs.replace(bench, history=history)
    return make_timed_run("SLOWER", bench, reason="build_slot_mapping takes 18 % longer")


@pytest.fixture
def foreign() -> Run:
    """A run compared with a baseline of another machine."""
    reason = "baseline main is of another machine: cpu Other CPU, here Example CPU"
    baseline = BaselineResult(name="main", state="another machine", reason=reason)
    bench = benchmarks.bench(baseline=baseline)
    return make_timed_run("INCOMPLETE", bench, reason=reason)


@pytest.fixture
def on_another_machine(slower: Run) -> Run:
    """Slower than the baseline of another machine: only grown counts are left."""
    old = slower.bench.baseline
    baseline = BaselineResult(
        name=old.name,
        state="another machine",
        reason="it is of another machine",
        created=old.created,
        regressions=old.regressions[9:10],
        lost=old.lost,
        control=old.control,
    )
    return with_bench(slower, baseline=baseline)


@pytest.fixture
def passing() -> Run:
    return make_run(
        "PASS", [make_result("build_slot_mapping"), make_result("split_attn_metadata", section="3")]
    )


@pytest.fixture
def advised(passing: Run) -> Run:
    """A run that passes, with advice and an operation that is not offered."""
    absent = make_result("absent", "NOT OFFERED", reason="no such function")
    return msgspec.structs.replace(
        passing, operations=[*passing.operations, absent], advice=[make_finding(1, kind=Kind.TYPE)]
    )


@pytest.fixture
def failing() -> Run:
    hostile = "<b>bold</b> </script><script>alert(1)</script> & \"quotes\" 'single' \x1b[31mred\x00"
    unmarked = Case("split_attn_metadata", MIXED, {"cuts": [3]})
    findings = [
        make_finding(1),
        make_finding(
            2,
            case=unmarked,
            field="[1].block_table_tensor[0, 1]",
            diagnosis="stale entry read",
            outputs=[
                make_difference(
                    "[1].block_table_tensor",
                    [[4, 21, 7], [9, 30, 7], [12, 7, 7]],
                    [[4, 99, 7], [9, 30, 7], [12, 7, 7]],
                    "int32 [3, 3] cpu",
                ),
                make_difference("[1].max_seq_len", 8, 9, "int"),
            ],
        ),
        make_finding(
            3,
            oracle="process",
            field="",
            diagnosis=f"crash {hostile}",
            message=hostile,
            expected="",
            got=hostile,
            outputs=[],
            log=f"Traceback (most recent call last):\n  {hostile}\nRuntimeError: {hostile}",
        ),
    ]
    operations = [
        make_result("build_slot_mapping", "FAIL"),
        make_result("split_attn_metadata", "FAIL", section="3"),
        make_result("is_block_tables_empty"),
        make_result(
            "build_slot_mapping", "NOT OFFERED", candidate="vllm", reason="no such function"
        ),
        make_result("get_mla_dims", "UNVERIFIED", section="7", reason="no <reference> yet"),
    ]
    return make_run("FAIL", operations, findings=findings)


@pytest.fixture
def since_base(failing: Run) -> Run:
    """The failing run with a base run that lacks the finding of split_attn_metadata."""
    known = [finding for finding in failing.findings if finding.operation == "build_slot_mapping"]
    base = as_compared(msgspec.structs.replace(failing, findings=known))
    return with_base(failing, base, "base/run")


@pytest.fixture
def sequence() -> Run:
    oracles = {"sequences": OracleCount(checks=1900, failed=12)}
    failed = make_result("batch_sequence", "FAIL", section="6", oracles=oracles)
    operations = [make_result("build_slot_mapping"), failed]
    return make_run("FAIL", operations, findings=[make_sequence_finding()])


@pytest.fixture
def incomplete() -> Run:
    operations = [
        make_result("build_slot_mapping"),
        make_result("split_attn_metadata", "UNVERIFIED", section="3", reason="time ran out"),
        make_result(
            "is_block_tables_empty",
            oracles={
                "equality": OracleCount(checks=9),
                "padding": OracleCount(reason="takes no tensors"),
            },
        ),
    ]
    return make_run("INCOMPLETE", operations, reason="time ran out before 1 operation was checked")


@pytest.fixture
def empty() -> Run:
    return make_run("INCOMPLETE", [], reason="no operation was selected", notes=[], settings={})


@pytest.fixture
def placed() -> Run:
    """A run with a finding in a file of the checkout, an equal one elsewhere, and advice."""
    case = Case("build_slot_mapping", None, {"block_size": 4})
    findings = [
        make_finding(1, case=case, function=f"{CHECKOUT}/pkg/my file.py:12"),
        make_finding(2, case=case, function="/usr/lib/site-packages/vllm/utils.py:7"),
    ]
    kind, function = Kind.TYPE, "<string>:1"
    advice = make_finding(3, case=case, diagnosis="a dtype", kind=kind, function=function)
    operations = [make_result("build_slot_mapping", "FAIL")]
    return make_run("FAIL", operations, findings=findings, advice=[advice])


@pytest.fixture
def wrong_when_timed() -> Run:
    reason = "returned another result while it was timed: result is None, expected 3"
    failed = make_result("get_mla_dims", "FAIL", failed=0, reason=reason)
    return make_run("FAIL", [failed], reason=f"get_mla_dims of optimized {reason}")


@pytest.fixture
def known() -> Run:
    """A run with a known deviation and a stale one."""
    shown = make_finding(7, command="attnproof replay cases/x.json --candidate vllm")
    about = {"reference": "SPEC <2>", "version": "0.11.2"}
    counts = {"equality": OracleCount(checks=400, known=31), "purity": OracleCount(checks=400)}
    result = make_result(
        shown.operation, "DEVIATES", cases=400, checks=800, known=31, oracles=counts
    )
    deviations = [
        make_deviation(
            "E2",
            shown,
            title="counts <padded> rows",
            since="2024-12-03",
            cases=31,
            oracles=("equality",),
            fields=("num_decodes",),
            **about,
        ),
        make_deviation("E9", title="gone", since="", **about),
    ]
    return make_run("PASS", [result, make_result("split_attn_metadata")], deviations=deviations)
