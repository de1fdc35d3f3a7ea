"""Ranks of context parallelism: how their cases are drawn, laid out and malformed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.case import Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import Params, Positive, Some


class RankParams(Params, kw_only=True):
    """Parameters of one rank, and the layout of the tensors."""

    size: Some
    rank: Count
    interleave: Positive
    wide: bool
    """True for int64 values, False for int32."""
    strided: bool


def rank_problem(case: Case) -> str:
    """Return why there is no such rank, "" if there is."""
    rank, size = case.params["rank"], case.params["size"]
    return "" if rank < size else f"rank: {rank}, of {size} ranks"


def rank_params(
    size: int, rank: int, interleave: int, *, wide: bool, strided: bool
) -> dict[str, Any]:
    """Return the fields of `RankParams`."""
    numbers = {"size": size, "rank": rank, "interleave": interleave}
    return numbers | {"wide": wide, "strided": strided}


INTERLEAVES = st.sampled_from((1, 2, 3, 16, 64))


def near_edges(size: int, interleave: int) -> st.SearchStrategy[int]:
    """Return a strategy for numbers around the turns of the ranks."""
    edges = st.sampled_from((0, interleave, size * interleave, 2 * size * interleave))
    return st.builds(lambda edge, off: max(0, edge + off), edges, st.integers(-2, 300))


def values_arena(case: Case, pattern: int, device: str, names: tuple[str, ...]) -> Arena:
    """Lay out the parameters `names`; with a parameter `columns` above 0 as rows of so many.

    With `transposed`, the rows of a column lie side by side.
    """
    params, pieces = case.params, []
    step = 2 if params["strided"] else 1
    for name in names:
        values = np.array(params[name], dtype=np.int64 if params["wide"] else np.int32)
        columns = params.get("columns", 0)
        strides: tuple[int, ...] = (step,)
        if columns:
            values = values.reshape(-1, columns)
            strides = (step * (columns + step - 1), step)
            if params.get("transposed"):
                strides = (step, step * len(values))
        pieces.append(Piece(name, values, False, strides))
    return Arena(pieces, STALE_PATTERNS[pattern], device)


def rank_faults(values: str) -> dict[str, Fault]:
    """Return the faults of a rank and of the tensor `values`."""
    return {
        "no ranks": wrong_value("dcp_size", 0),
        "interleave of 0": wrong_value("interleave_size", 0),
        "rank beyond the ranks": Fault("dcp_rank", lambda _, size: size, given=("dcp_size",)),
        "negative rank": wrong_value("dcp_rank", -1),
        "rank of another type": wrong_type("dcp_rank"),
        "values of another type": wrong_type(values),
        "float values": Fault(values, torch.Tensor.float),
        "negative values": Fault(
            values,
            lambda tensor: -2 - tensor.abs(),
            applies=lambda case: bool(case.params[values]),
            cpu_only=True,
        ),
    }
