"""Operation of SPEC.md section 15: a rank's own indices of positions.

Bug classes: a position of another rank that keeps an index, -1 taken for a position.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.shared.params import Params, Positive, Some
from attnproof.reference import localize_dcp_indices as reference

NAME = "localize_dcp_indices"
_INTERLEAVES = st.sampled_from((1, 2, 3, 16, 64))
_Index = Annotated[int, Meta(ge=-1, le=2**31 - 1)]


def _near_edges(size: int, interleave: int) -> st.SearchStrategy[int]:
    """Return a strategy for numbers around the turns of the ranks."""
    edges = st.sampled_from((0, interleave, size * interleave, 2 * size * interleave))
    return st.builds(lambda edge, off: max(0, edge + off), edges, st.integers(-2, 300))


class _Params(Params):
    size: Some
    """Ranks that share a cache."""
    rank: Count
    """Rank whose part is computed."""
    interleave: Positive
    """Positions that a rank owns in turn."""
    wide: bool
    """True for int64 values, False for int32."""
    strided: bool
    """True for indices with gaps between them."""
    indices: Annotated[list[_Index], Meta(max_length=2**16)]
    columns: Annotated[int, Meta(ge=0, le=64)]
    transposed: bool = False


def _problem(case: Case) -> str:
    columns, count = case.params["columns"], len(case.params["indices"])
    if columns and count % columns:
        return f"columns: {columns}, which does not divide {count} indices"
    rank, size = case.params["rank"], case.params["size"]
    return "" if rank < size else f"rank: {rank}, of {size} ranks"


def _case(
    indices: list[int],
    size: int,
    rank: int = 0,
    interleave: int = 1,
    *,
    columns: int = 0,
    wide: bool = False,
    strided: bool = False,
    transposed: bool = False,
) -> Case:
    """Return a case; with `columns` above 0 the indices are 2-D."""
    ranks = {"size": size, "rank": rank, "interleave": interleave}
    shape = {"columns": columns, "transposed": transposed, "wide": wide, "strided": strided}
    return Case(NAME, None, {"indices": indices} | shape | ranks)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    size, interleave = draw(st.integers(1, 8)), draw(_INTERLEAVES)
    indices = draw(st.lists(st.just(-1) | _near_edges(size, interleave), max_size=12))
    columns = draw(st.sampled_from([n for n in (0, 1, 2, 3) if not n or len(indices) % n == 0]))
    rank, wide = draw(st.integers(0, size - 1)), draw(st.booleans())
    return _case(
        indices,
        size,
        rank,
        interleave,
        columns=columns,
        wide=wide,
        strided=draw(st.booleans()),
        transposed=draw(st.booleans()),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    around = [0, 1, 3, 4, 5, 7, 8, 9, -1, 31, 32, 33]
    yield "one rank", _case(around, 1)
    for rank in range(3):
        yield f"rank {rank} of 3", _case(around, 3, rank, 4)
    for edge in (-1, 0, 1):
        yield f"up to a turn of all ranks {edge:+d}", _case([0, 5, 12 + edge], 3, 0, 4)
    yield "rows of indices", _case(around, 2, 1, 2, columns=4)
    yield "columns of indices", _case(around, 2, 1, 2, columns=4, transposed=True)
    yield "no indices", _case([], 2)
    yield "nothing but -1", _case([-1, -1], 2, 1)
    yield "-1 for the last rank, turns of one", _case([-1, 3, 7], 4, 3)
    yield "last int32 positions", _case([2**31 - 1, 2**31 - 2], 8, 7, 64)
    yield "turns of the longest sequence", _case([2**31 - 1, 5], 8, 0, 2**31 - 1)
    yield "strided int64", _case(around, 3, 1, 2, columns=3, wide=True, strided=True)


def _steps(batch: Batch) -> Iterator[Case]:
    size = 2 + batch.num_requests % 3
    last = [c + q - 1 for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    yield _case(last, size, batch.num_tokens % size, batch.block_size)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params = case.params
    step = 2 if params["strided"] else 1
    indices = np.array(params["indices"], dtype=np.int64 if params["wide"] else np.int32)
    columns = params["columns"]
    strides: tuple[int, ...] = (step,)
    if columns:
        indices = indices.reshape(-1, columns)
        strides = (step * (columns + step - 1), step)
        if params["transposed"]:  # the rows of a column lie side by side
            strides = (step, step * len(indices))
    piece = Piece("indices", indices, False, strides)
    arena = Arena([piece], STALE_PATTERNS[pattern], device)
    args = {"indices": arena.tensors["indices"], "dcp_size": params["size"]}
    args |= {"dcp_rank": params["rank"], "interleave_size": params["interleave"]}
    return Call(args, arena=arena)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compute each position back from the rank's index, and check who owns the others."""
    size, rank, interleave = call["dcp_size"], call["dcp_rank"], call["interleave_size"]
    positions, local = int64_array(call["indices"]), int64_array(outputs["result"])
    turn, place = np.divmod(local, interleave)
    global_positions = (turn * size + rank) * interleave + place
    if (global_positions != positions)[local >= 0].any():
        yield Violation("result", "is the index of another position")
    owned = (positions >= 0) & (positions // interleave % size == rank)
    if (local < 0)[owned].any():
        yield Violation("result", "is -1 for a position that the rank owns")
    if (local[~owned] != -1).any():
        yield Violation("result", "is an index for a position of another rank, or for none")


localize_dcp_indices = Operation(
    name=NAME,
    section="15",
    summary="a rank's own indices of positions",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare)
        | {
            "negative values": Fault(
                "indices",
                lambda indices: -2 - indices.abs(),
                applies=lambda case: bool(case.params["indices"]),
                cpu_only=True,
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=returned),
    contract=Contract(invariants=_invariants, may_alias=frozenset({"result"})),
    built_in=BuiltIn(kernels=True),
)


OPERATIONS = (localize_dcp_indices,)
