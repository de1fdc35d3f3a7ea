"""Operation of SPEC.md section 11: the blocks that hold the states of state-space layers.

Bug classes: the block after the last token's where a sequence ends with its block, a negative
column of an empty sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.tensors import table_piece
from attnproof.harness.cases.magnitudes import FLOAT_LIMITS, ROUNDED_SIZES
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import returned
from attnproof.harness.operations.shared.params import (
    Blocks,
    BlockSize,
    Few,
    Params,
    size_problem,
)

NAME = "mamba_get_block_table_tensor"
_TAKEN = ("align", "all")


class _Params(Params):
    seq_lens: Blocks
    block_size: BlockSize
    speculative: Few
    mode: Literal["none", "align", "all"] = "align"
    first: Count = 1
    """Id of the first block; ids descend from request to request."""
    spare: Few = 0
    """Columns behind the longest row, all stale."""
    wide: Literal["", "table", "lengths"] = ""
    """The tensor that is int64."""
    strided: bool = False


def _columns(params: dict[str, Any]) -> list[int]:
    """Return the first column that is taken of each row."""
    return [max(0, length - 1) // params["block_size"] for length in params["seq_lens"]]


def _width(params: dict[str, Any]) -> int:
    last, spare = max(_columns(params), default=0), params.get("spare", 0)
    width: int = last + 1 + params["speculative"] + spare
    return width


def _problem(case: Case) -> str:
    params = case.params
    elements = len(params["seq_lens"]) * (_width(params) + 3) * 2
    if params.get("first", 1) + elements >= 2**31:
        return "first: ids beyond int32"
    return size_problem("seq_lens", 4 * elements)


def _unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""
    if case.params.get("wide"):
        return "ids and lengths of an engine are int32"
    return "the tensors of an engine have no gaps" if case.params.get("strided") else ""


def _case(seq_lens: list[int], block_size: int, speculative: int = 0, **more: Any) -> Case:
    params = {"seq_lens": seq_lens, "block_size": block_size, "speculative": speculative}
    return Case(NAME, None, params | more)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from((4, 1, 3, 16, 48, 256)))
    edges = st.sampled_from((0, 1, block_size, 2 * block_size))
    lengths = st.builds(lambda edge, off: max(0, edge + off), edges, st.integers(-1, 40))
    return _case(
        draw(st.lists(lengths, max_size=6)),
        block_size,
        draw(st.integers(0, 3)),
        mode=draw(st.sampled_from(("align", "all", "none"))),
        spare=draw(st.integers(0, 2)),
        wide=draw(st.sampled_from(("", "table", "lengths"))),
        strided=draw(st.booleans()),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    around = [0, 1, 3, 4, 5, 7, 8, 9]
    for speculative in (0, 1, 3):
        yield f"{speculative} speculative blocks", _case(around, 4, speculative, spare=1)
    yield "mode all", _case(around, 4, 2, mode="all", spare=1)
    yield "mode none", _case(around, 4, 2, mode="none", spare=1)
    yield "blocks of one token", _case([0, 1, 2, 9], 1, 1)
    yield "only empty sequences", _case([0, 0], 4, 2)
    yield "no requests", _case([], 4, 2, spare=2)
    yield "highest block ids", _case([5, 9], 4, 1, first=2**31 - 100)
    yield "longest int32 sequence", _case([2**31 - 1, 1], 2**16, 1)
    for limit in FLOAT_LIMITS:
        size = limit // 2048
        for edge in (-1, 0, 1):
            far = [limit + 3 * size + edge, 1]
            yield f"{edge:+d} of a block beyond {limit}", _case(far, size)
    for size in ROUNDED_SIZES:
        firsts = [blocks * size + edge for blocks in range(1, 8) for edge in (0, 1)]
        yield f"first positions of blocks of {size}", _case(firsts, size)
    yield "strided int64 table", _case(around, 4, 2, wide="table", strided=True)
    yield "strided int64 lengths", _case(around, 4, 2, wide="lengths", strided=True)
    for rows in (127, 128, 129):
        yield f"{2 * rows} blocks, a kernel tile has 256", _case([i % 9 for i in range(rows)], 4, 1)
    yield "more requests than a kernel tile", _case([i % 40 for i in range(700)], 4, 3)


def _steps(batch: Batch) -> Iterator[Case]:
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    yield _case([*lengths, *[0] * batch.padded_requests], batch.block_size, 2)


def _table(params: dict[str, Any], pattern: int) -> np.ndarray:
    """Return (R, W): ids of its own in each row, stale behind the blocks that are taken."""
    rows, width = len(params["seq_lens"]), _width(params)
    ids = params.get("first", 1) + np.arange(rows * width)[::-1].reshape(rows, width)
    taken = np.array(_columns(params), np.int64)[:, None] + params["speculative"]
    table = np.where(np.arange(width) <= taken, ids ^ pattern, STALE_PATTERNS[pattern])
    return table.astype(np.int64 if params.get("wide") == "table" else np.int32)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    params, step = case.params, 2 if case.params.get("strided") else 1
    dtype = np.int64 if params.get("wide") == "lengths" else np.int32
    lengths = np.array(params["seq_lens"], dtype=dtype)
    pieces = [
        table_piece("block_table", _table(params, pattern), step),
        Piece("seq_lens", lengths, False, (step,)),
    ]
    arena = Arena(pieces, STALE_PATTERNS[pattern], device)
    spec = SimpleNamespace(
        block_size=params["block_size"], num_speculative_blocks=params["speculative"]
    )
    args = {
        "block_table": arena.tensors["block_table"],
        "seq_lens": arena.tensors["seq_lens"],
        "kv_cache_spec": spec,
        "mamba_cache_mode": params.get("mode", "align"),
    }
    return Call(args, arena=arena)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Find each row's taken blocks by counting the blocks before the last token."""
    result, table, spec = outputs["result"], call["block_table"], call["kv_cache_spec"]
    if call["mamba_cache_mode"] == "none":
        if result.shape != table.shape or result.data_ptr() != table.data_ptr():
            yield Violation("result", "is not the block table itself")
        return
    for row, length in enumerate(call["seq_lens"].tolist()):
        full = length // spec.block_size
        first = full - 1 if length and not length % spec.block_size else full
        wanted = table[row, first : first + 1 + spec.num_speculative_blocks]
        if result[row].tolist() != wanted.tolist():
            yield Violation("result", "does not begin with the block of the last token")
            return


def _taken(case: Case) -> bool:
    return case.params.get("mode", "align") in _TAKEN


def _taken_rows(case: Case) -> bool:
    return _taken(case) and bool(case.params["seq_lens"])


def _spec(field: str, value: Any) -> Fault:
    """Return the fault of a spec whose field has this value."""

    def change(spec: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(**vars(spec) | {field: value})

    return Fault("kv_cache_spec", change, field, applies=_taken)


mamba_get_block_table_tensor = Operation(
    name=NAME,
    section="11",
    summary="the blocks that hold the state of each sequence",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "another mode": wrong_value("mamba_cache_mode", "some"),
            "mode of another type": Fault("mamba_cache_mode", lambda _: 7, error=TypeError),
            "blocks of 0 tokens": _spec("block_size", 0),
            "negative number of speculative blocks": _spec("num_speculative_blocks", -1),
            "more blocks than columns": Fault(
                ("kv_cache_spec", "block_table"),
                lambda spec, table: (spec, table[:, : spec.num_speculative_blocks]),
                "block_table",
                applies=_taken_rows,
            ),
            "sequence beyond the table": Fault(
                "block_table",
                lambda table: table[:, :-1],
                applies=lambda case: _taken_rows(case) and not case.params.get("spare"),
                cpu_only=True,
            ),
            "lengths of another batch": Fault(
                "seq_lens", lambda lengths: torch.cat([lengths, lengths.new_zeros(1)])
            ),
            "negative lengths": Fault(
                "seq_lens", lambda lengths: -1 - lengths, applies=_taken_rows, cpu_only=True
            ),
            "float lengths": Fault("seq_lens", torch.Tensor.float),
            "flat table": Fault("block_table", torch.Tensor.flatten),
            "table of another type": wrong_type("block_table"),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=returned),
    contract=Contract(
        invariants=_invariants,
        may_alias=frozenset({"result"}),
        is_new=lambda case: case.params.get("mode") != "none",
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (mamba_get_block_table_tensor,)
