"""Operation of SPEC.md section 15: a rank's share of a range of each sequence.

Bug classes: a range that begins inside a turn counted as if it began at its first position,
turns multiplied in 32 bits (K15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.pages.dcp import (
    INTERLEAVES,
    RankParams,
    near_edges,
    rank_faults,
    rank_params,
    rank_problem,
    values_arena,
)
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.shared.params import Blocks

NAME = "get_dcp_lens"
_MOST_COUNTED = 5000
"""Longest range whose positions are counted one by one."""


class _Params(RankParams):
    lens: Blocks
    start: Blocks | None


def _problem(case: Case) -> str:
    start, lens = case.params["start"], case.params["lens"]
    if start is not None and len(start) != len(lens):
        return f"start: {len(start)} entries, lens has {len(lens)}"
    return rank_problem(case)


def _unreal(case: Case) -> str:
    starts = case.params["start"] or [0] * len(case.params["lens"])
    ends = [first + n for first, n in zip(starts, case.params["lens"], strict=True)]
    if max(ends, default=0) >= 2**31:
        return "a sequence of an engine has fewer than 2**31 tokens"
    turns = case.params["size"] * case.params["interleave"]
    return "" if turns < 2**31 else "the turns of an engine's ranks are shorter than a sequence"


def _case(
    lens: list[int],
    start: list[int] | None,
    size: int,
    rank: int = 0,
    interleave: int = 1,
    *,
    wide: bool = False,
    strided: bool = False,
) -> Case:
    ranks = rank_params(size, rank, interleave, wide=wide, strided=strided)
    return Case(NAME, None, {"lens": lens, "start": start} | ranks)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    size, interleave = draw(st.integers(1, 8)), draw(INTERLEAVES)
    numbers = near_edges(size, interleave)
    within_a_turn = st.integers(0, interleave)
    lens = draw(st.lists(numbers, max_size=6) | st.lists(within_a_turn, max_size=6))
    start = None
    if draw(st.booleans()):
        start = draw(st.lists(numbers, min_size=len(lens), max_size=len(lens)))
    rank, wide = draw(st.integers(0, size - 1)), draw(st.booleans())
    return _case(lens, start, size, rank, interleave, wide=wide, strided=draw(st.booleans()))


def _boundaries() -> Iterator[tuple[str, Case]]:
    around = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33]
    starts = [7, 0, 5, 4, 3, 9, 1, 8, 2, 31, 30]
    yield "one rank", _case(around, None, 1)
    yield "one rank, from starts", _case(around, starts, 1)
    for rank in range(3):
        yield f"rank {rank} of 3", _case(around, None, 3, rank, 4)
        yield f"rank {rank} of 3, from starts (K37)", _case(around, starts, 3, rank, 4)
    yield "short ranges from the last rank's turn", _case([1, 2, 4, 3], [11, 10, 9, 23], 3, 0, 4)
    for factor in (2, 4):
        even = [factor * start for start in starts]
        yield f"starts that are multiples of {factor}", _case(around, even, factor, 1, 4)
    yield "no requests", _case([], [], 2)
    longest = [2**31 - 1, 2**31 - 2]
    yield "longest int32 sequence", _case(longest, None, 8, 7, 64)
    yield "turns beyond int32 (K15)", _case(longest, None, 8, 1, 2**31 - 1)
    yield "end of a range beyond int32 (K15)", _case(longest, longest, 2, 1)
    yield "strided int64", _case(around, starts, 3, 1, 2, wide=True, strided=True)


def _steps(batch: Batch) -> Iterator[Case]:
    size = 2 + batch.num_requests % 3
    queries, computed = list(batch.query_lens), list(batch.computed_lens)
    yield _case(queries, computed, size, batch.num_tokens % size)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params = case.params
    names = ("lens",) if params["start"] is None else ("lens", "start")
    arena = values_arena(case, pattern, device, names)
    args = {"lens": arena.tensors["lens"], "dcp_size": params["size"], "dcp_rank": params["rank"]}
    args |= {"start": arena.tensors.get("start"), "interleave_size": params["interleave"]}
    return Call(args, arena=arena)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Count the positions of the rank one by one."""
    size, interleave = call["dcp_size"], call["interleave_size"]
    starts = call["start"]
    lens = int64_array(call["lens"])
    firsts = np.zeros_like(lens) if starts is None else int64_array(starts)
    shares = int64_array(outputs["result"])
    for length, first, share in zip(lens, firsts, shares, strict=True):
        if length > _MOST_COUNTED:
            continue
        owners = np.arange(first, first + length) // interleave % size
        if share != (owners == call["dcp_rank"]).sum():
            yield Violation("result", "is not the number of positions that the rank owns")
            return


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    """Name a range that is counted from another position than its start."""
    if call["start"] is None or not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    lens, starts, found = (int64_array(one) for one in (call["lens"], call["start"], got))
    if np.array_equal(found, _owned_before(call, lens)):
        return "a range counted as if it began at position 0"
    from_0 = np.array_equal(found, _owned_before(call, starts + lens))
    return "the positions before a range counted with it" if from_0 else ""


def _owned_before(call: Call, ends: np.ndarray) -> np.ndarray:
    """Return the number of positions in [0, end) that the rank owns."""
    interleave, rank = call["interleave_size"], call["dcp_rank"]
    turns, rest = np.divmod(ends, call["dcp_size"] * interleave)
    owned: np.ndarray = turns * interleave + np.clip(rest - rank * interleave, 0, interleave)
    return owned


get_dcp_lens = Operation(
    name=NAME,
    section="15",
    summary="a rank's share of a range of each sequence",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=rank_faults("lens")
        | {
            "2-D lengths": Fault("lens", lambda lens: lens[None]),
            "starts of another batch": Fault(
                "start", lambda _, lens: torch.cat([lens, lens.new_zeros(1)]), given=("lens",)
            ),
            "negative starts": Fault(
                "start",
                lambda _, lens: -1 - lens,
                applies=lambda case: bool(case.params["lens"]),
                cpu_only=True,
                given=("lens",),
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=returned),
    contract=Contract(invariants=_invariants, diagnose=_diagnose, may_alias=frozenset({"result"})),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (get_dcp_lens,)
