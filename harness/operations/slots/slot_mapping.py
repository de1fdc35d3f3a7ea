"""Operation of SPEC.md section 5 on a batch: `build_slot_mapping`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, slot_violations
from attnproof.harness.model.call import Call, Facts, Outputs, Quantity
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import batch_of, token_positions
from attnproof.harness.operations.shared.overlap import overlaps
from attnproof.harness.operations.shared.params import Lengths, Params, Tokens

_LENGTHS = st.sampled_from(((None, None), (0, None), (3, None), (None, 4), (2, 5)))
_EXTRA = st.integers(0, 5)
_BLOCK_BITS = 40
"""Bits of the block id in a number that combines row and block id."""
NAME = "build_slot_mapping"
_TENSORS = ("query_start_loc", "num_computed_tokens", "block_table")
_OFFSETS = ("query_start_loc",)


@dataclass(frozen=True, kw_only=True)
class _SlotFacts(Facts):
    batch: Batch
    params: dict[str, Any]


class _Params(Params):
    num_padded: Tokens | None
    """Entries behind the tokens, None for a call without `num_padded_tokens`."""
    out_spare: Tokens | None
    """Entries of the output behind the tokens, None without an output."""
    start_idx: Lengths | None = None
    columns: Count | None = None
    """Columns of the block table, None for all."""


def _problem(case: Case) -> str:
    padded, spare = case.params["num_padded"], case.params["out_spare"]
    fits = padded is None or spare is None or padded <= spare
    return "" if fits else f"num_padded: {padded}, beyond out_spare of {spare}"


def _case(
    batch: Batch,
    *,
    padded: int | None = None,
    out: int | None = None,
    start_idx: list[int] | None = None,
    columns: int | None = None,
) -> Case:
    """Return a case; `padded` and `out` are entries beyond the tokens, `columns` cuts the table."""
    params: dict[str, Any] = {"num_padded": padded, "out_spare": out}
    if start_idx is not None:
        params["start_idx"] = start_idx
    if columns is not None:
        params["columns"] = columns
    return Case(NAME, batch, params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches())
    rows = batch.num_requests + batch.padded_requests
    padded, out = draw(_LENGTHS)
    start_idx = columns = None
    extra = draw(_EXTRA)
    if extra == 1:
        start_idx = draw(st.lists(st.integers(0, 30), min_size=rows, max_size=rows))
    elif extra == 2:
        columns = draw(st.integers(0, 2))
    return _case(batch, padded=padded, out=out, start_idx=start_idx, columns=columns)


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, spare_columns=2, order="descending")
    yield "mixed batch", _case(mixed)
    yield "padded length", _case(mixed, padded=70)
    yield "buffer with a stale tail (K17)", _case(mixed, out=6)
    yield "padded length in a longer buffer", _case(mixed, padded=1030, out=1040)
    yield "window", _case(mixed, start_idx=[0, 3, 0, 11])
    yield "sequence longer than its row's columns (K14)", _case(mixed, columns=1)
    yield "table without columns", _case(mixed, columns=0)
    yield (
        "shorter request in a longer row (K18)",
        _case(make_batch([1, 1], [0, 30], 4, spare_columns=3)),
    )
    yield "no requests", _case(make_batch([], [], 4))
    yield "no requests, padded", _case(make_batch([], [], 4), padded=3)
    yield "only padded rows", _case(make_batch([], [], 4, padded_requests=3), padded=3)
    for block_size in (1, 16, 256):
        highest = make_batch([3, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 4)
        yield f"highest block ids, block size {block_size} (K15)", _case(highest)
    yield "more tokens than a kernel tile (K19)", _case(make_batch([9000], [3], 16))
    yield (
        "many short requests over several tiles",
        _case(
            make_batch([(5 * row) % 4 for row in range(9000)], [row % 7 for row in range(9000)], 4)
        ),
    )
    yield (
        "strided int64",
        _case(make_batch([4, 3], [1, 6], 4, strided=True, dtype="int64"), out=3, start_idx=[2, 0]),
    )
    yield "window far into a long prompt", _case(make_batch([6000], [0], 16), start_idx=[5000])
    yield "position beyond 2**20", _case(make_batch([3], [2**20 + 254], 256))
    yield "shared prefix blocks", _case(make_batch([2, 2], [8, 8], 4, shared=True))


def _steps(batch: Batch) -> Iterator[Case]:
    yield _case(batch, padded=None, out=batch.num_tokens % 7)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    arrays, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    step = 2 if batch.strided else 1
    tokens = int(arrays.query_start_loc[-1])
    table = arrays.block_table_with(stale)[:, : params.get("columns")]
    pieces = [
        Piece("query_start_loc", arrays.query_start_loc, False, (step,)),
        Piece("num_computed_tokens", arrays.num_computed_tokens, False, (step,)),
        table_piece("block_table", table, step),
    ]
    if params.get("start_idx") is not None:
        rows = arrays.num_reqs
        first_kept = np.array(
            [*params["start_idx"], *[0] * rows][:rows], dtype=arrays.seq_lens.dtype
        )
        pieces.append(Piece("start_idx", first_kept, False, (step,)))
    out_spare = params["out_spare"]
    if out_spare is not None:
        buffer = np.full(tokens + out_spare, stale, dtype=np.int64)
        pieces.append(Piece("out", buffer, False, (step,)))
    arena = Arena(pieces, stale, device)
    padded = params["num_padded"]
    return Call(
        {name: arena.tensors[name] for name in _TENSORS} | {"block_size": batch.block_size},
        {
            "num_padded_tokens": None if padded is None else tokens + padded,
            "start_idx": arena.tensors.get("start_idx"),
            "out": arena.tensors.get("out"),
        },
        arena=arena,
        written=frozenset({"out"}),
        facts=_SlotFacts(batch=batch, params=params, tokens=tokens, result=Quantity.SLOTS),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return {"result": result, "out": call["out"]}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    result, batch, out = outputs["result"], call.facts.batch, call["out"]
    if not isinstance(result, torch.Tensor) or result.ndim != 1:
        return
    if out is not None and result.numel() and result.data_ptr() != out.data_ptr():
        yield Violation("result", "is not a view of the buffer that was given")
    slots, tokens = result.cpu().numpy(), call.facts.tokens
    if len(slots) < tokens:
        yield Violation("result", "has fewer entries than there are tokens")
        return
    if (slots[tokens:] != -1).any():
        yield Violation("result", "gives a slot to an entry behind the last token")
    arrays = batch_arrays(batch)
    live = slots[:tokens] >= 0
    positions = token_positions(arrays.query_start_loc, arrays.num_computed_tokens)
    if (slots[:tokens][live] % batch.block_size != positions[live] % batch.block_size).any():
        yield Violation("result", "puts a token at another offset of its block")
    kept = slots[:tokens][live]
    if not batch_shares_blocks(batch) and len(np.unique(kept)) != len(kept):
        yield Violation("result", "gives two tokens the same slot")
    owners = np.repeat(np.arange(arrays.num_reqs), np.diff(arrays.query_start_loc))[live]
    written = owners << _BLOCK_BITS | kept // batch.block_size
    if not np.isin(written, _owned(batch)).all():
        yield Violation("result", "writes into a block that its request does not own")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each token is written to the slot that the block table gives it."""
    expected, params = expected_tokens(call.facts.batch), call.facts.params
    columns = params.get("columns")
    width = expected.table.shape[1] if columns is None else columns
    unwritten = expected.positions // expected.block_size >= width
    if params.get("start_idx") is not None:
        rows = len(expected.computed)
        first = np.array([*params["start_idx"], *[0] * rows][:rows], np.int64)
        unwritten |= expected.positions < first[expected.requests]
    yield from slot_violations(expected, outputs["result"], "result", unwritten=unwritten)
    if outputs["out"] is not None:
        yield from slot_violations(expected, outputs["out"], "out", unwritten=unwritten)


def _owned(batch: Batch) -> np.ndarray:
    """Return (B,) int64: row and block id, combined in one number, of every live block."""
    counts = [len(blocks) for blocks in batch.blocks]
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows << _BLOCK_BITS | np.array([b for row in batch.blocks for b in row], dtype=np.int64)


def batch_shares_blocks(batch: Batch) -> bool:
    """True if two requests have a block in common."""
    blocks = [block for row in batch.blocks for block in row]
    return len(set(blocks)) != len(blocks)


def _buffer(_: Any, offsets: torch.Tensor) -> torch.Tensor:
    """Return a good `out` for the tokens of `offsets`."""
    return offsets.new_zeros(int(offsets[-1]) + 3, dtype=torch.int64)


def _needs_tokens(case: Case) -> bool:
    return case.num_tokens > 0


def _last_negative(lengths: torch.Tensor) -> torch.Tensor:
    """Return the lengths with -1 in the last row."""
    return torch.cat([lengths[:-1], lengths.new_tensor([-1])])


def _has_columns(case: Case) -> bool:
    return _needs_tokens(case) and case.params.get("columns") != 0


def _has_window(case: Case) -> bool:
    return _needs_tokens(case) and case.params.get("start_idx") is not None


def _short(parameter: str) -> Fault:
    return Fault(parameter, lambda tensor: tensor[:-1], applies=_needs_tokens)


def _values(parameter: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    """Return a fault of a tensor's values, which a check can detect on the CPU only."""
    return Fault(parameter, change, applies=_needs_tokens, cpu_only=True)


build_slot_mapping = Operation(
    name=NAME,
    section="5",
    summary="the cache slot of every token of a batch",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=lambda case: (
            "a block table of an engine has a column" if case.params.get("columns") == 0 else ""
        ),
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "block size of 0": wrong_value("block_size", 0),
            "block size of another type": wrong_type("block_size"),
            "offsets of another type": wrong_type("query_start_loc"),
            "no offsets": wrong_value("query_start_loc", torch.zeros(0, dtype=torch.int32)),
            "one row of computed tokens missing": _short("num_computed_tokens"),
            "one row of blocks missing": _short("block_table"),
            "float block table": _values("block_table", torch.Tensor.float),
            "offsets that fall": _values(
                "query_start_loc", lambda offsets: torch.cat([offsets[:-1], -1 - offsets[:1]])
            ),
            "first offset above 0": _values(
                "query_start_loc", lambda offsets: torch.cat([offsets[:1] + 1, offsets[1:]])
            ),
            "first offset below 0": _values(
                "query_start_loc", lambda offsets: torch.cat([offsets[:1] - 1, offsets[1:]])
            ),
            "negative computed tokens": _values("num_computed_tokens", _last_negative),
            "padded length below the tokens": Fault(
                "num_padded_tokens", lambda _: 0, applies=_needs_tokens, cpu_only=True
            ),
            "negative padded length": wrong_value("num_padded_tokens", -1),
            "int32 buffer": Fault("out", lambda *values: _buffer(*values).int(), reads=_OFFSETS),
            "2-D buffer": Fault("out", lambda *values: _buffer(*values)[None], reads=_OFFSETS),
            "buffer of another type": Fault("out", lambda _: [0] * 4, error=TypeError),
            "short buffer": Fault(
                "out",
                lambda *values: _buffer(*values)[:0],
                applies=_needs_tokens,
                cpu_only=True,
                reads=_OFFSETS,
            ),
            **overlaps("out", "query_start_loc", _buffer, _needs_tokens, _OFFSETS),
            **overlaps("out", "num_computed_tokens", _buffer, _needs_tokens, _OFFSETS),
            **overlaps("out", "block_table", _buffer, _has_columns, _OFFSETS),
            **overlaps("out", "start_idx", _buffer, _has_window, _OFFSETS),
            "window of another batch": Fault(
                "start_idx", lambda _, offsets: offsets, reads=_OFFSETS
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        relations=Relations(
            joined={"result": Joined.TOKENS},
            alone={"num_padded": None, "out_spare": None},
            per_request=frozenset({"start_idx"}),
            slots=frozenset({"result", "out"}),
        ),
        invariants=_invariants,
        consume=_consumed,
        may_alias=frozenset({"result", "out"}),
        may_sync=lambda case: (
            case.params["num_padded"] is None and case.params["out_spare"] is None
        ),
    ),
    bench=Bench(cases=lambda batch: [_case(batch)]),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (build_slot_mapping,)
