"""Runs built by hand, so that tests of the report run no candidate."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.place import Place
from attnproof.harness.model.run import (
    Difference,
    Environment,
    Evidence,
    Finding,
    OperationResult,
    OracleCount,
    Run,
)
from attnproof.harness.model.timing import BaselineResult
from attnproof.harness.model.verdict import Kind
from attnproof.harness.report.shared.comparison import as_compared, with_base

ORACLES = {
    "equality": "Every output element is exactly the reference's.",
    "invariants": "Properties that need no reference hold.",
    "purity": "No input is modified.",
    "padding": "No result depends on stale memory.",
}
ENVIRONMENT = Environment(
    attnproof="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    numpy="2.3.0",
    triton="3.7.0",
    numba="0.62.0",
    xformers="0.0.35",
    platform="Linux x86_64",
    cpu="Example CPU",
    cpus=16,
    gpu=None,
    commit="0123abc+",
)
MIXED = Batch(
    block_size=4,
    query_lens=(1, 6, 0, 3),
    computed_lens=(9, 2, 5, 0),
    blocks=((17, 3, 8), (4, 21), (9, 30), (12,)),
    padded_requests=2,
    padded_tokens=4,
    spare_columns=2,
    spare_slots=3,
    logits_indices=(0, 6, 9),
    logits_padding=1,
)


def difference(field: str, expected: Any, got: Any, kind: str = "int32 [4] cpu") -> Difference:
    return Difference(
        field=field,
        expected=expected,
        got=got,
        expected_type=kind,
        got_type=kind,
        equal=expected == got,
    )


def step_difference(place: str, expected: Any, got: Any, kind: str = "int32 [4] cpu") -> Difference:
    """Return a compared field of a sequence; `[2].slots` is the field `slots` of step 2."""
    step, field = re.fullmatch(r"\[(\d+)\]\.(.*)", place, re.DOTALL).groups()
    return msgspec.structs.replace(difference(field, expected, got, kind), step=int(step))


def finding(number: int = 1, **changes: Any) -> Finding:
    case = changes.pop("case", Case("build_slot_mapping", MIXED, {"block_size": 4}))
    fields: dict[str, Any] = {
        "id": f"{number:012x}",
        "operation": case.operation,
        "candidate": "optimized",
        "device": "cpu",
        "oracle": "equality",
        "kind": Kind.WRONG_RESULT,
        "field": "slot_mapping[3]",
        "diagnosis": "off by one block",
        "message": "slot_mapping[3] is 88, expected 84",
        "expected": "84",
        "got": "88",
        "case": case,
        "case_id": case.id,
        "case_path": f"cases/{case.id}.json",
        "origin": "fuzz",
        "source": "",
        "requests": case.num_requests,
        "tokens": case.num_tokens,
        "requests_before": 37,
        "tokens_before": 4201,
        "failed_cases": 12,
        "evidence": {"fuzz": Evidence(12, 200), "trace": Evidence(0, 50)},
        "command": f"attnproof replay reports/latest/cases/{case.id}.json --candidate optimized",
        "outputs": [
            difference(
                "slot_mapping",
                [33, 18, 19, 84, 85, 86, 87, 48, 49, 50, -1, -1, -1, -1],
                [33, 18, 19, 88, 89, 90, 91, 48, 49, 50, -1, -1, -1, -1],
                "int64 [14] cpu",
            ),
            difference("num_reqs", 4, 4, "int"),
        ],
    }
    fields |= changes
    place = re.sub(r"^\[\d+\]", "[]", re.sub(r"\[[\d, ]+\]$", "", fields["field"]))
    root = (fields["kind"], fields["oracle"], place)
    return Finding(**({"root": root} | fields))


def result(name: str, verdict: str = "PASS", **changes: Any) -> OperationResult:
    checked = verdict in ("PASS", "FAIL")
    fields: dict[str, Any] = {
        "name": name,
        "section": "5",
        "candidate": "optimized",
        "device": "cpu",
        "verdict": verdict,
        "cases": 400 * checked,
        "checks": 1600 * checked,
        "failed": 12 * (verdict == "FAIL"),
        "oracles": {oracle: OracleCount(checks=400) for oracle in ORACLES} if checked else {},
        "seconds": 1.25,
    }
    if verdict == "FAIL":
        fields["oracles"]["equality"] = OracleCount(checks=400, failed=12)
    return OperationResult(**(fields | changes))


def run(verdict: str, operations: list[OperationResult], **changes: Any) -> Run:
    fields: dict[str, Any] = {
        "verdict": verdict,
        "seed": 20240917,
        "started": "2025-01-02T03:04:05Z",
        "seconds": 61.7,
        "command": "attnproof verify --seconds 60",
        "environment": ENVIRONMENT,
        "settings": {"examples": 400, "jobs": 4, "traces": ["a.csv", "b.jsonl"]},
        "operations": operations,
        "findings": [],
        "notes": ["CUDA: this machine has no GPU."],
    }
    return Run(**(fields | changes))


BATCH_STEPS = [
    ("add request a", "batch.add('a')"),
    ("add a again, which is refused", "batch.add('a')"),
    ("add request b", "batch.add('b')"),
    ("swap rows 0 and 1", "batch.swap(0, 1)"),
    ("remove request a", "batch.remove('a')"),
]
_RIGHT: list[dict[str, Any]] = [
    {"raises": None, "req_ids": ["a"], "rows": [[3, 4, 0], [0, 0, 0]], "num_reqs": 1, "built": 0},
    {"raises": "ValueError"},
    {"raises": None, "req_ids": ["a", "b"], "rows": [[3, 4, 0], [7, 0, 0]], "num_reqs": 2},
    {"req_ids": ["b", "a"], "rows": [[7, 0, 0], [3, 4, 0]]},
    {"req_ids": ["b"], "rows": [[7, 0, 0], [0, 0, 0]], "num_reqs": 1},
]


def sequence_finding(number: int = 1, **changes: Any) -> Finding:
    """Return a finding in the fourth of five steps: a swap makes two rows equal."""
    state: dict[str, Any] = {}
    outputs = []
    for index, changed in enumerate(_RIGHT):
        state = state | {"raises": None} | changed
        for name, value in state.items():
            got = value
            if index >= 3 and name == "rows":
                got = [[7, 0, 0], [7, 0, 0]]
            outputs.append(step_difference(f"[{index}].{name}", value, got, "int32 [2, 3] cpu"))
    fields: dict[str, Any] = {
        "case": Case("batch_sequence", None, {"width": 3, "steps": [{"do": "add"}] * 5}),
        "oracle": "sequences",
        "field": "[3].rows[1, 0]",
        "place": Place("rows", step=3),
        "diagnosis": "both rows hold the same request",
        "message": "after step 4 (swap rows 0 and 1): [3].rows[1, 0] is 7, expected 3",
        "expected": "[[7 0 0] [3 4 0]]",
        "got": "[[7 0 0] [7 0 0]]",
        "steps": list(BATCH_STEPS),
        "steps_before": 22,
        "snippet": "from candidate import Batch\n\nbatch = Batch(3)\n# 1. add request a",
        "outputs": outputs,
    }
    return finding(number, **(fields | changes))


@pytest.fixture(scope="session")
def benchmarks() -> ModuleType:
    """The module benchmarks.py beside this file."""
    path = Path(__file__).with_name("benchmarks.py")
    spec = importlib.util.spec_from_file_location("benchmarks", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed_run(verdict: str, bench: Any, **changes: Any) -> Run:
    pairs = dict.fromkeys((timing.operation, timing.candidate) for timing in bench.timings)
    operations = [result(operation, candidate=candidate) for operation, candidate in pairs]
    return run(verdict, operations, bench=bench, **changes)


@pytest.fixture
def make_timed_run() -> Callable[..., Run]:
    return timed_run


@pytest.fixture
def timed(benchmarks: ModuleType) -> Run:
    """A timed run without a baseline."""
    return timed_run("PASS", benchmarks.bench())


@pytest.fixture
def slower(benchmarks: ModuleType) -> Run:
    """A run with a slower timing, one with another allocation, and a history."""
    bench = benchmarks.compared(benchmarks.bench())
    history = [benchmarks.past(bench, "first", 2.0), benchmarks.past(bench, "second", 1.5)]
    bench = msgspec.structs.replace(bench, history=history)
    return timed_run("SLOWER", bench, reason="build_slot_mapping takes 18 % longer")


@pytest.fixture
def foreign(benchmarks: ModuleType) -> Run:
    """A run compared with a baseline of another machine."""
    reason = "baseline main is of another machine: cpu Other CPU, here Example CPU"
    baseline = BaselineResult(name="main", state="another machine", reason=reason)
    bench = benchmarks.bench(baseline=baseline)
    return timed_run("INCOMPLETE", bench, reason=reason)


@pytest.fixture
def with_bench() -> Callable[..., Run]:
    """A copy of a run with other fields of its benchmark."""

    def changed(run: Run, **changes: Any) -> Run:
        return msgspec.structs.replace(run, bench=msgspec.structs.replace(run.bench, **changes))

    return changed


@pytest.fixture
def on_another_machine(slower: Run, with_bench: Callable[..., Run]) -> Run:
    """Slower than the baseline of another machine: only grown counts are left."""
    old = slower.bench.baseline
    found = BaselineResult(
        name=old.name,
        state="another machine",
        reason="it is of another machine",
        created=old.created,
        regressions=old.regressions[9:10],
        lost=old.lost,
        control=old.control,
    )
    return with_bench(slower, baseline=found)


@pytest.fixture
def make_sequence_finding() -> Callable[..., Finding]:
    return sequence_finding


@pytest.fixture
def oracles() -> dict[str, str]:
    return dict(ORACLES)


@pytest.fixture
def make_finding() -> Callable[..., Finding]:
    return finding


@pytest.fixture
def make_difference() -> Callable[..., Difference]:
    return difference


@pytest.fixture
def make_step_difference() -> Callable[..., Difference]:
    return step_difference


@pytest.fixture
def make_result() -> Callable[..., OperationResult]:
    return result


@pytest.fixture
def make_run() -> Callable[..., Run]:
    return run


@pytest.fixture
def mixed() -> Batch:
    return MIXED


@pytest.fixture
def passing() -> Run:
    return run("PASS", [result("build_slot_mapping"), result("split_attn_metadata", section="3")])


@pytest.fixture
def failing() -> Run:
    hostile = "<b>bold</b> </script><script>alert(1)</script> & \"quotes\" 'single' \x1b[31mred\x00"
    unmarked = Case("split_attn_metadata", MIXED, {"cuts": [3]})
    findings = [
        finding(1),
        finding(
            2,
            case=unmarked,
            field="[1].block_table_tensor[0, 1]",
            diagnosis="stale entry read",
            outputs=[
                difference(
                    "[1].block_table_tensor",
                    [[4, 21, 7], [9, 30, 7], [12, 7, 7]],
                    [[4, 99, 7], [9, 30, 7], [12, 7, 7]],
                    "int32 [3, 3] cpu",
                ),
                difference("[1].max_seq_len", 8, 9, "int"),
            ],
        ),
        finding(
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
        result("build_slot_mapping", "FAIL"),
        result("split_attn_metadata", "FAIL", section="3"),
        result("is_block_tables_empty"),
        result("build_slot_mapping", "NOT OFFERED", candidate="vllm", reason="no such function"),
        result("get_mla_dims", "UNVERIFIED", section="7", reason="no <reference> yet"),
    ]
    return run("FAIL", operations, findings=findings)


@pytest.fixture
def since_base(failing: Run) -> Run:
    """The failing run with a base run that lacks the finding of split_attn_metadata."""
    known = [one for one in failing.findings if one.operation == "build_slot_mapping"]
    base = as_compared(msgspec.structs.replace(failing, findings=known))
    return with_base(failing, base, "base/run")


@pytest.fixture
def sequence(make_sequence_finding: Callable[..., Finding]) -> Run:
    oracles = {"sequences": OracleCount(checks=1900, failed=12)}
    failed = result("batch_sequence", "FAIL", section="6", oracles=oracles)
    operations = [result("build_slot_mapping"), failed]
    return run("FAIL", operations, findings=[make_sequence_finding()])


@pytest.fixture
def incomplete() -> Run:
    operations = [
        result("build_slot_mapping"),
        result("split_attn_metadata", "UNVERIFIED", section="3", reason="time ran out"),
        result(
            "is_block_tables_empty",
            oracles={
                "equality": OracleCount(checks=9),
                "padding": OracleCount(reason="takes no tensors"),
            },
        ),
    ]
    return run("INCOMPLETE", operations, reason="time ran out before 1 operation was checked")


@pytest.fixture
def empty() -> Run:
    return run("INCOMPLETE", [], reason="no operation was selected", notes=[], settings={})
