"""Operation of SPEC.md section 10: runs of prefills whose keys fit into a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.place import Place, child_outputs, of_children
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.reference import split_prefill_chunks as reference


def _lengths(params: dict[str, Any]) -> list[int]:
    lengths: list[int] = params["seq_lens_cpu"]
    return [lengths[row % len(lengths)] for row in range(params["size_N"])]


def _unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    if not all(_lengths(case.params)):
        return "an engine's prefill has a key"
    wide = case.params["layout"].get("other_dtypes")
    return "the lengths of an engine are int32" if wide else ""


def _of(lengths: list[int], workspace: int, offset: int = 0) -> dict[str, Any]:
    """Return the parameters of these lengths."""
    room = workspace - max(lengths, default=0)
    sizes = {"seq_lens_cpu": lengths or [0], "size_N": len(lengths)}
    return sizes | {"room": room, "request_offset": offset}


def _examples() -> Iterator[Example]:
    yield "SPEC example", None, _of([5, 3, 4, 8, 1], 8, 2)
    yield "every prefill fills the workspace", None, _of([8, 8, 8], 8)
    for last in (3, 4, 5):
        yield f"run of {4 + last} tokens, 8 fit", None, _of([4, last, 2], 8)
    yield "sequences of length 0", None, _of([0, 8, 0, 0, 1, 0], 8)
    yield "sum beyond int32", None, _of([2**31 - 1, 1, 2**31 - 2, 2], 2**31 - 1, 1)
    yield "many prefills", None, _of([1 + i % 7 for i in range(500)], 64)


def _steps(batch: Batch) -> Iterator[Step]:
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    longest = max(lengths, default=0)
    yield batch, _of(lengths, max(1, longest + longest // 2), batch.num_requests % 4)


def _workspace(values: Values) -> int:
    longest, room = int(values["seq_lens_cpu"].max(initial=0)), int(values.params["room"])
    return max(1, longest + room)


def _outputs(_call: Call, result: Any) -> Outputs:
    if not isinstance(result, list):
        raise TypeError("expected a list of runs")
    runs = of_children({"start": start, "end": end} for start, end in result)
    return {Place("num_runs"): len(result)} | runs


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that the runs are a greedy partition of the requests."""
    lengths, offset = call["seq_lens_cpu"].tolist(), call["request_offset"]
    children = [child_outputs(outputs, i) for i in range(outputs[Place("num_runs")])]
    runs = [(child["start"] - offset, child["end"] - offset) for child in children]
    bounds = [0, *(end for _, end in runs)]
    if [start for start, _ in runs] != bounds[:-1] or bounds[-1] != len(lengths):
        yield Violation("[].start", "leaves a request in no run, or in two")
        return
    sums = [sum(lengths[start:end]) for start, end in runs]
    if any(start >= end for start, end in runs):
        yield Violation("[].end", "makes a run without a request")
    elif max(sums, default=0) > call["workspace_size"]:
        yield Violation("[].end", "makes a run that does not fit into the workspace")
    elif any(
        here + lengths[start] <= call["workspace_size"]
        for here, (_, (start, _)) in zip(sums, pairwise(runs), strict=False)
    ):
        yield Violation("[].end", "ends a run before the workspace is full")


split_prefill_chunks = derive_built_in(
    reference,
    section="10",
    summary="runs of prefills whose keys fit into a workspace",
    values={"workspace_size": _workspace},
    parameters={"room": one_of(Count, 0, 1, 4, 30, 2**31 - 1)},
    examples=_examples,
    steps=_steps,
    unreal=_unreal,
    outputs=_outputs,
    invariants=_invariants,
    faults={
        "sequence beyond the workspace": Fault(
            "workspace_size",
            lambda _, lengths: int(lengths.max()) - 1,
            "seq_lens_cpu",
            applies=lambda case: max(_lengths(case.params), default=0) > 1,
            reads=("seq_lens_cpu",),
        ),
    },
)

OPERATIONS = (split_prefill_chunks,)
