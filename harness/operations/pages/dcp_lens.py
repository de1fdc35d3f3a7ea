"""Operation of SPEC.md section 15: a rank's share of a range of each sequence.

Bug classes: a range that begins inside a turn counted as if it began at its first position,
turns multiplied in 32 bits (K15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Case
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.reference import get_dcp_lens as reference

_MOST_COUNTED = 5000
"""Longest range whose positions are counted one by one."""


def _unreal(case: Case) -> str:
    params = case.params
    starts = params["start"] if params["with_start"] else [0]
    if max(params["lens"]) + max(starts) >= 2**31:
        return "a sequence of an engine has fewer than 2**31 tokens"
    turns = params["dcp_size"] * params["interleave_size"]
    return "" if turns < 2**31 else "the turns of an engine's ranks are shorter than a sequence"


def _examples() -> Iterator[Example]:
    around = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33]
    starts = [7, 0, 5, 4, 3, 9, 1, 8, 2, 31, 30]

    def example(lens: list[int], start: list[int] | None, *ranks: int, **more: Any) -> Any:
        size, rank, interleave = ranks
        numbers = {"dcp_size": size, "dcp_rank": rank, "interleave_size": interleave}
        start_params = {"start": start or [0], "with_start": start is not None}
        return None, {"lens": lens, "size_L": len(lens)} | numbers | start_params | more

    yield "one rank, from starts", *example(around, starts, 1, 0, 1)
    for rank in range(3):
        yield f"rank {rank} of 3", *example(around, None, 3, rank, 4)
        yield f"rank {rank} of 3, from starts (K37)", *example(around, starts, 3, rank, 4)
    short = [11, 10, 9, 23]
    yield "short ranges from the last rank's turn", *example([1, 2, 4, 3], short, 3, 0, 4)
    for factor in (2, 4):
        even = [factor * start for start in starts]
        yield f"starts that are multiples of {factor}", *example(around, even, factor, 1, 4)
    longest = [2**31 - 1, 2**31 - 2]
    yield "longest int32 sequence", *example(longest, None, 8, 7, 64)
    yield "turns beyond int32 (K15)", *example(longest, None, 8, 1, 2**31 - 1)
    yield "end of a range beyond int32 (K15)", *example(longest, longest, 2, 1, 1)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Count the positions of the rank one by one."""
    lens = int64_array(call["lens"])
    firsts = np.zeros_like(lens) if call["start"] is None else int64_array(call["start"])
    for length, first, share in zip(lens, firsts, int64_array(outputs["result"]), strict=True):
        if length > _MOST_COUNTED:
            continue
        owners = np.arange(first, first + length) // call["interleave_size"] % call["dcp_size"]
        if share != (owners == call["dcp_rank"]).sum():
            yield Violation("result", "is not the number of positions that the rank owns")
            return


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    """Name a range that is counted from another position than its start."""
    if call["start"] is None or not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    lens, starts, shares = map(int64_array, (call["lens"], call["start"], got))
    if np.array_equal(shares, _owned_before(call, lens)):
        return "a range counted as if it began at position 0"
    from_0 = np.array_equal(shares, _owned_before(call, starts + lens))
    return "the positions before a range counted with it" if from_0 else ""


def _owned_before(call: Call, ends: np.ndarray) -> np.ndarray:
    """Return the number of positions in [0, end) that the rank owns."""
    interleave, rank = call["interleave_size"], call["dcp_rank"]
    turns, rest = np.divmod(ends, call["dcp_size"] * interleave)
    owned: np.ndarray = turns * interleave + np.clip(rest - rank * interleave, 0, interleave)
    return owned


get_dcp_lens = derive_built_in(
    reference,
    section="15",
    summary="a rank's share of a range of each sequence",
    examples=_examples,
    unreal=_unreal,
    invariants=_invariants,
    diagnose=_diagnose,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (get_dcp_lens,)
