"""Runs built by hand, so that tests of the report run no candidate."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.place import Place
from attnproof.harness.model.run import (
    DeviationResult,
    Difference,
    Environment,
    Evidence,
    Finding,
    OperationResult,
    OracleCount,
    Run,
)
from attnproof.harness.model.verdict import Kind

CHECKOUT = Path("/checkout")
"""Folder of the checkout, in runs whose findings have a place in it."""
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


def make_difference(
    field: str, expected: Any, got: Any, kind: str = "int32 [4] cpu", **changes: Any
) -> Difference:
    fields: dict[str, Any] = {
        "expected_type": kind,
        "got_type": kind,
        "equal": expected == got and changes.get("got_type", kind) == kind,
    }
    return Difference(field=field, expected=expected, got=got, **(fields | changes))


def make_step_difference(
    place: str, expected: Any, got: Any, kind: str = "int32 [4] cpu"
) -> Difference:
    """Return a compared field of a sequence; `[2].slots` is the field `slots` of step 2."""
    step, field = re.fullmatch(r"\[(\d+)\]\.(.*)", place, re.DOTALL).groups()
    return make_difference(field, expected, got, kind, step=int(step))


def make_finding(number: int = 1, **changes: Any) -> Finding:
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
            make_difference(
                "slot_mapping",
                [33, 18, 19, 84, 85, 86, 87, 48, 49, 50, -1, -1, -1, -1],
                [33, 18, 19, 88, 89, 90, 91, 48, 49, 50, -1, -1, -1, -1],
                "int64 [14] cpu",
            ),
            make_difference("num_reqs", 4, 4, "int"),
        ],
    }
    fields |= changes
    place = re.sub(r"^\[\d+\]", "[]", re.sub(r"\[[\d, ]+\]$", "", fields["field"]))
    root = (fields["kind"], fields["oracle"], place)
    return Finding(**({"root": root} | fields))


def make_result(name: str, verdict: str = "PASS", **changes: Any) -> OperationResult:
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


def make_run(verdict: str, operations: list[OperationResult], **changes: Any) -> Run:
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


def make_sequence_finding(number: int = 1, **changes: Any) -> Finding:
    """Return a finding in the fourth of five steps: a swap makes two rows equal."""
    state: dict[str, Any] = {}
    outputs = []
    for index, changed in enumerate(_RIGHT):
        state = state | {"raises": None} | changed
        for name, value in state.items():
            got = value
            if index >= 3 and name == "rows":
                got = [[7, 0, 0], [7, 0, 0]]
            outputs.append(
                make_step_difference(f"[{index}].{name}", value, got, "int32 [2, 3] cpu")
            )
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
    return make_finding(number, **(fields | changes))


def make_timed_run(verdict: str, bench: Any, **changes: Any) -> Run:
    pairs = dict.fromkeys((timing.operation, timing.candidate) for timing in bench.timings)
    operations = [make_result(operation, candidate=candidate) for operation, candidate in pairs]
    return make_run(verdict, operations, bench=bench, **changes)


def with_bench(run: Run, **changes: Any) -> Run:
    """Return the run with other fields of its benchmark."""
    return msgspec.structs.replace(run, bench=msgspec.structs.replace(run.bench, **changes))


def make_deviation(name: str, finding: Finding | None = None, **changes: Any) -> DeviationResult:
    """Return a known deviation that a case shows, without a finding a stale one."""
    fields: dict[str, Any] = {
        "title": "a title",
        "reference": "a reference",
        "since": "2025-01-01",
        "operation": "build_slot_mapping",
        "candidate": "optimized",
        "version": "1",
        "cases": int(finding is not None),
        "shown": finding,
    }
    return DeviationResult(id=name, **(fields | changes))


def shown(renderable: Any, width: int = 100, **options: Any) -> str:
    """Return what a terminal of this width shows, without colours."""
    out = StringIO()
    Console(file=out, width=width, color_system=None, **options).print(renderable)
    return out.getvalue()
