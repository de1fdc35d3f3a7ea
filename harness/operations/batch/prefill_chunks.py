"""Operation of SPEC.md section 10: runs of prefills whose keys fit into a workspace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Contract, Inputs, Operation
from attnproof.harness.model.place import Place, child_outputs, of_children
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import Blocks, Params, Positive

NAME = "split_prefill_chunks"


class _Params(Params):
    seq_lens: Blocks
    workspace: Positive
    offset: Count = 0
    wide: bool = False
    strided: bool = False


def _problem(case: Case) -> str:
    longest, workspace = max(case.params["seq_lens"], default=0), case.params["workspace"]
    return f"seq_lens: {longest}, beyond workspace of {workspace}" if longest > workspace else ""


def _unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    if not all(case.params["seq_lens"]):
        return "an engine's prefill has a key"
    if case.params.get("wide"):
        return "the lengths of an engine are int32"
    return "the tensors of an engine have no gaps" if case.params.get("strided") else ""


def _case(seq_lens: list[int], workspace: int, offset: int = 0, **flags: bool) -> Case:
    """Return a case; flags: the lengths are `wide` (int64), `strided`."""
    params = {"seq_lens": seq_lens, "workspace": workspace, "offset": offset}
    return Case(NAME, None, params | flags)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    workspace = draw(st.sampled_from((1, 4, 8, 100)))
    some = st.integers(0, workspace) | st.sampled_from((workspace, workspace // 2))
    lengths = draw(st.lists(some, max_size=8))
    flags = {"wide": draw(st.booleans()), "strided": draw(st.booleans())}
    return _case(lengths, workspace, draw(st.integers(0, 5)), **flags)


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "SPEC example", _case([5, 3, 4, 8, 1], 8, 2)
    yield "no prefills", _case([], 8, 3)
    yield "one prefill of the whole workspace", _case([8], 8)
    yield "every prefill fills the workspace", _case([8, 8, 8], 8)
    for last in (3, 4, 5):
        yield f"run of {4 + last} tokens, 8 fit", _case([4, last, 2], 8)
    yield "sequences of length 0", _case([0, 8, 0, 0, 1, 0], 8)
    yield "only sequences of length 0", _case([0, 0], 1)
    yield "sum beyond int32", _case([2**31 - 1, 1, 2**31 - 2, 2], 2**31 - 1, 1)
    yield "strided int64", _case([3, 4, 5, 6], 9, 1, wide=True, strided=True)
    yield "many prefills", _case([1 + i % 7 for i in range(500)], 64)


def _steps(batch: Batch) -> Iterator[Case]:
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    longest = max(lengths, default=0)
    yield _case(lengths, max(1, longest + longest // 2), batch.num_requests % 4)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params = case.params
    lengths = np.array(params["seq_lens"], dtype=np.int64 if params.get("wide") else np.int32)
    step = 2 if params.get("strided") else 1
    arena = Arena([Piece("seq_lens_cpu", lengths, True, (step,))], STALE_PATTERNS[pattern], device)
    args = {
        "seq_lens_cpu": arena.tensors["seq_lens_cpu"],
        "workspace_size": params["workspace"],
        "request_offset": params.get("offset", 0),
    }
    return Call(args, arena=arena)


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


def _has_requests(case: Case) -> bool:
    return bool(case.params["seq_lens"])


split_prefill_chunks = Operation(
    name=NAME,
    section="10",
    summary="runs of prefills whose keys fit into a workspace",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "sequence beyond the workspace": Fault(
                ("workspace_size", "seq_lens_cpu"),
                lambda size, lengths: (size, torch.cat([lengths, lengths[:1] * 0 + size + 1])),
                "seq_lens_cpu",
                applies=lambda case: _has_requests(case) and case.params["workspace"] < 2**31 - 1,
            ),
            "negative length": Fault(
                "seq_lens_cpu", lambda lengths: -1 - lengths, applies=_has_requests
            ),
            "float lengths": Fault("seq_lens_cpu", torch.Tensor.float),
            "2-D lengths": Fault("seq_lens_cpu", lambda lengths: lengths[None]),
            "lengths of another type": wrong_type("seq_lens_cpu"),
            "workspace of 0": wrong_value("workspace_size", 0),
            "workspace of another type": wrong_type("workspace_size"),
            "negative offset": wrong_value("request_offset", -1),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants),
)

OPERATIONS = (split_prefill_chunks,)
