"""Operation of SPEC.md section 10: a rank's shares of sequences in a persistent buffer.

Bug classes: shares of an earlier step behind the rows of this one (K13), stale lengths that are
read, a tail that ends with the padded rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.params import Blocks, Few, Params, Positive, Some
from attnproof.reference import prepare_dcp_local_seq_lens as reference

NAME = "prepare_dcp_local_seq_lens"
_BUFFER = "dcp_local_seq_lens"
_PADDED = st.none() | st.integers(0, 3)
_SPARE = st.integers(0, 4)


class _Params(Params):
    seq_lens: Blocks
    size: Some
    """Ranks that share a cache."""
    rank: Count
    """Rank whose part is computed."""
    interleave: Positive
    """Positions that a rank owns in turn."""
    padded: Few | None = None
    """Padded rows, None for a call without `num_reqs_padded`."""
    spare: Few = 0
    """Rows of the buffer behind the padded ones."""
    stale: Few = 0
    """Entries of the lengths behind those of the batch."""
    wide: bool = False
    """True for int64 lengths."""
    strided: bool = False
    """True for lengths with gaps between them."""


def _problem(case: Case) -> str:
    rank, size = case.params["rank"], case.params["size"]
    return "" if rank < size else f"rank: {rank}, of {size} ranks"


def _unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    if case.params["size"] == 1:
        return "an engine prepares shares for several ranks only"
    if case.params.get("wide"):
        return "the lengths of an engine are int32"
    if case.params["size"] * case.params["interleave"] >= 2**31:
        return "the turns of an engine's ranks are shorter than a sequence"
    return "the tensors of an engine have no gaps" if case.params.get("strided") else ""


def _case(
    seq_lens: list[int], size: int, rank: int, interleave: int = 1, **more: int | bool | None
) -> Case:
    params = {"seq_lens": seq_lens, "size": size, "rank": rank, "interleave": interleave}
    return Case(NAME, None, params | more)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    size = draw(st.integers(1, 8))
    interleave = draw(st.sampled_from((1, 2, 3, 16, 64)))
    edges = st.sampled_from((0, interleave, size * interleave, 2 * size * interleave))
    lengths = st.builds(lambda edge, off: max(0, edge + off), edges, st.integers(-2, 300))
    more = {"padded": draw(_PADDED), "spare": draw(_SPARE), "stale": draw(_SPARE)}
    flags = {"wide": draw(st.booleans()), "strided": draw(st.booleans())}
    rank = draw(st.integers(0, size - 1))
    return _case(draw(st.lists(lengths, max_size=6)), size, rank, interleave, **more, **flags)


def _boundaries() -> Iterator[tuple[str, Case]]:
    around = [0, 1, 3, 4, 5, 7, 8, 9, 31, 32, 33]
    for rank in range(3):
        yield f"rank {rank} of 3", _case(around, 3, rank, 4, spare=2)
    yield "one rank", _case(around, 1, 0, spare=2)
    yield "stale tail of the buffer (K13)", _case([9, 4], 2, 1, padded=1, spare=5, stale=6)
    yield "padded rows to the end of the buffer", _case([9, 4], 2, 0, padded=3, stale=3)
    yield "no padded rows and no spare ones", _case([9, 4], 2, 0, padded=0)
    yield "without a padded number", _case([9, 4], 2, 0, spare=3)
    yield "no requests", _case([], 2, 1, padded=2, spare=2, stale=2)
    yield "empty buffer", _case([], 2, 1)
    yield "longest int32 sequence", _case([2**31 - 1, 2**31 - 2], 8, 7, 64, spare=1)
    longest = 2**31 - 1
    yield "turns beyond int32 (K15)", _case([5, longest], 1024, 1023, longest, spare=1)
    yield "strided int64", _case(around, 3, 1, 2, spare=2, wide=True, strided=True)
    for rows in (255, 256, 257):
        yield (
            f"{rows} rows, a kernel tile has 256",
            _case([row % 9 for row in range(rows)], 2, 1, 2),
        )
    yield "more requests than a kernel tile", _case(list(range(700)), 4, 2, 8, padded=9, spare=300)


def _steps(batch: Batch) -> Iterator[Case]:
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    size = 2 + batch.num_requests % 3
    padded = batch.padded_requests
    yield _case(lengths, size, len(lengths) % size, batch.block_size, padded=padded, spare=5)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params, stale = case.params, STALE_PATTERNS[pattern]
    lengths, padded = params["seq_lens"], params.get("padded")
    rows, step = len(lengths), 2 if params.get("strided") else 1
    dtype = np.int64 if params.get("wide") else np.int32
    seq_lens = np.array([*lengths, *[stale] * params.get("stale", 0)], dtype=dtype)
    buffer = np.full(rows + (padded or 0) + params.get("spare", 0), stale, dtype=np.int32)
    pieces = [
        Piece("seq_lens", seq_lens, False, (step,)),
        Piece(_BUFFER, buffer, False, (step,)),
    ]
    arena = Arena(pieces, stale, device)
    args = {
        _BUFFER: arena.tensors[_BUFFER],
        "seq_lens": arena.tensors["seq_lens"],
        "num_reqs": rows,
        "dcp_size": params["size"],
        "dcp_rank": params["rank"],
        "cp_interleave": params["interleave"],
    }
    more = {"num_reqs_padded": None if padded is None else rows + padded}
    return Call(args, more, arena=arena, written=frozenset({_BUFFER}), facts=Facts())


def _outputs(call: Call, result: torch.Tensor) -> Outputs:
    return {"result": result, _BUFFER: call[_BUFFER]}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Count the positions of the rank one by one, and look at the rows behind them."""
    rows, size, rank = call["num_reqs"], call["dcp_size"], call["dcp_rank"]
    result, padded = outputs["result"], call["num_reqs_padded"]
    buffer = outputs[_BUFFER].cpu().tolist()
    if len(result) != (len(buffer) if padded is None else padded):
        yield Violation("result", "has another number of rows than the padded batch")
    if len(result) and result.data_ptr() != call[_BUFFER].data_ptr():
        yield Violation("result", "is not a view of the buffer that was given")
    if any(buffer[rows:]):
        yield Violation(_BUFFER, "keeps a length behind the batch's rows")
    for length, share in zip(call["seq_lens"].tolist()[:rows], buffer, strict=False):
        if length <= 2000:
            owners = np.arange(length) // call["cp_interleave"] % size
            if share != int((owners == rank).sum()):
                yield Violation(_BUFFER, "is not the number of positions that the rank owns")
                return


def _has_requests(case: Case) -> bool:
    return bool(case.params["seq_lens"])


prepare_dcp_local_seq_lens = Operation(
    name=NAME,
    section="10",
    summary="a rank's shares of the sequences in a persistent buffer",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare)
        | {
            "fewer padded rows than requests": Fault(
                "num_reqs_padded", lambda _, rows: rows - 1, reads=("num_reqs",)
            ),
            "more padded rows than the buffer has": Fault(
                "num_reqs_padded", lambda _, out: len(out) + 1, _BUFFER, reads=(_BUFFER,)
            ),
            "lengths of fewer requests": Fault(
                "seq_lens", lambda lengths: lengths[:0], applies=_has_requests
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, may_alias=frozenset({"result", _BUFFER})),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (prepare_dcp_local_seq_lens,)
