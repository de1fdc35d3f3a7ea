"""Operation of SPEC.md section 10: shares of sequences under context parallelism."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.faults import wrong_value
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.shared.params import Blocks, Params, Positive, Some
from attnproof.reference import get_dcp_local_seq_lens as reference

NAME = "get_dcp_local_seq_lens"


class _Params(Params):
    seq_lens: Blocks
    size: Some
    """Ranks that share a cache."""
    rank: Count | None
    """Rank whose part is computed."""
    interleave: Positive
    """Positions that a rank owns in turn."""
    tensor: bool
    wide: bool
    strided: bool


def _problem(case: Case) -> str:
    rank, size = case.params["rank"], case.params["size"]
    return "" if rank is None or rank < size else f"rank: {rank}, of {size} ranks"


def _unreal(case: Case) -> str:
    turns = case.params["size"] * case.params["interleave"]
    return "" if turns < 2**31 else "the turns of an engine's ranks are shorter than a sequence"


def _case(
    seq_lens: list[int], size: int, rank: int | None = None, interleave: int = 1, **flags: bool
) -> Case:
    """Return a case; flags: the rank is a `tensor`, the lengths are `wide` (int64), `strided`."""
    params = {"seq_lens": seq_lens, "size": size, "rank": rank, "interleave": interleave}
    return Case(NAME, None, params | {"tensor": False, "wide": False, "strided": False} | flags)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    size = draw(st.integers(1, 8))
    interleave = draw(st.sampled_from((1, 2, 3, 16, 64)))
    edges = st.sampled_from((0, interleave, size * interleave, 2 * size * interleave))
    lengths = st.builds(lambda edge, off: max(0, edge + off), edges, st.integers(-2, 300))
    return _case(
        draw(st.lists(lengths, max_size=6)),
        size,
        draw(st.none() | st.integers(0, size - 1)),
        interleave,
        tensor=draw(st.booleans()),
        wide=draw(st.booleans()),
        strided=draw(st.booleans()),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    around = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33]
    yield "one rank", _case(around, 1)
    yield "all of four ranks, single positions", _case(around, 4)
    yield "all of two ranks, turns of four", _case(around, 2, interleave=4)
    for rank in range(3):
        yield f"rank {rank} of 3", _case(around, 3, rank, 4)
    yield "rank as a tensor", _case(around, 4, 2, 4, tensor=True)
    yield "no requests", _case([], 2)
    yield "longest int32 sequence", _case([2**31 - 1, 2**31 - 2], 8, interleave=64)
    longest = 2**31 - 1
    for tensor in (False, True):
        name = f"turns beyond int32, rank as a {'tensor' if tensor else 'number'} (K15)"
        yield name, _case([5, longest], 1024, 1023, longest, tensor=tensor)
    yield "turns beyond int32, all ranks (K15)", _case([5, longest], 4, interleave=2**30 - 1)
    yield "strided int64", _case(around, 3, interleave=2, wide=True, strided=True)


def _steps(batch: Batch) -> Iterator[Case]:
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    yield _case(lengths, 2 + batch.num_requests % 3, interleave=batch.block_size)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params = case.params
    lengths = np.array(params["seq_lens"], dtype=np.int64 if params["wide"] else np.int32)
    pieces = [Piece("seq_lens", lengths, False, (2 if params["strided"] else 1,))]
    rank = params["rank"]
    if params["tensor"] and rank is not None:
        pieces.append(Piece("dcp_rank", np.array([rank], dtype=np.int32), False, (1,)))
    arena = Arena(pieces, STALE_PATTERNS[pattern], device)
    args: dict[str, Any] = {"seq_lens": arena.tensors["seq_lens"], "dcp_size": params["size"]}
    args["dcp_rank"] = arena.tensors.get("dcp_rank", rank)
    return Call(args | {"cp_kv_cache_interleave_size": params["interleave"]}, arena=arena)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Count the positions of each rank one by one, and compare all ranks' sum."""
    lengths, size, rank = call["seq_lens"], call["dcp_size"], call["dcp_rank"]
    interleave = call["cp_kv_cache_interleave_size"]
    ranks = range(size) if rank is None else [int(rank)]
    shares = outputs["result"].cpu().reshape(len(lengths), len(ranks)).tolist()
    for length, row in zip(lengths.tolist(), shares, strict=True):
        if rank is None and sum(row) != length:
            yield Violation("result", "does not sum to the sequence length")
        if length <= 2000:
            owners = np.arange(length) // interleave % size
            if row != [int((owners == owner).sum()) for owner in ranks]:
                yield Violation("result", "is not the number of positions that the rank owns")


get_dcp_local_seq_lens = Operation(
    name=NAME,
    section="10",
    summary="each rank's share of the sequences under context parallelism",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        any_slots=True,
        faults=faults_of(reference, _prepare)
        | {
            "rank beyond the ranks": Fault("dcp_rank", lambda _, size: size, reads=("dcp_size",)),
            "negative rank": wrong_value("dcp_rank", -1),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=returned),
    contract=Contract(invariants=_invariants),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (get_dcp_local_seq_lens,)
