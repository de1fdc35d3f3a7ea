"""Operations of SPEC.md section 5, the batch form: `build_slot_mapping`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, slot_violations
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Breach, Call, Fault, Operation, Outputs
from attnproof.harness.operations.shared.metadata import (
    batch_of,
    token_positions,
    wrong_type,
    wrong_value,
)
from attnproof.reference.interface import MetadataError

_LENGTHS = st.sampled_from(((None, None), (0, None), (3, None), (None, 4), (2, 5)))
_EXTRA = st.integers(0, 5)
_BLOCK_BITS = 40
NAME = "build_slot_mapping"


def _case(
    batch: Batch,
    *,
    padded: int | None = None,
    out: int | None = None,
    start_idx: list[int] | None = None,
    columns: int | None = None,
) -> Case:
    """`padded` and `out` count entries beyond the tokens; `columns` cuts the block table."""
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
    yield "padded length", _case(mixed, padded=4)
    yield "buffer with a stale tail (K17)", _case(mixed, out=6)
    yield "padded length in a longer buffer", _case(mixed, padded=2, out=6)
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
    made, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    step = 2 if batch.strided else 1
    tokens = int(made.query_start_loc[-1])
    table = made.block_table_with(stale)[:, : params.get("columns")]
    pieces = [
        Piece("query_start_loc", made.query_start_loc, False, (step,)),
        Piece("num_computed_tokens", made.num_computed_tokens, False, (step,)),
        table_piece("block_table", table, step),
    ]
    if params.get("start_idx") is not None:
        rows = made.num_reqs
        first_kept = np.array([*params["start_idx"], *[0] * rows][:rows], dtype=made.seq_lens.dtype)
        pieces.append(Piece("start_idx", first_kept, False, (step,)))
    out_spare = params["out_spare"]
    if out_spare is not None:
        buffer = np.full(tokens + out_spare, stale, dtype=np.int64)
        pieces.append(Piece("out", buffer, False, (step,)))
    arena = Arena(pieces, stale, device)
    padded = params["num_padded"]
    return Call(
        [
            *(arena.tensors[n] for n in ("query_start_loc", "num_computed_tokens", "block_table")),
            batch.block_size,
        ],
        {
            "num_padded_tokens": None if padded is None else tokens + padded,
            "start_idx": arena.tensors.get("start_idx"),
            "out": arena.tensors.get("out"),
        },
        arena=arena,
        written=frozenset({"out"}),
        facts={"batch": batch, "params": params, "tokens": tokens},
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return {"result": result, "out": call.kwargs["out"]}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Breach]:
    result, batch, out = outputs["result"], call.facts["batch"], call.kwargs["out"]
    if not isinstance(result, torch.Tensor) or result.ndim != 1:
        return
    if out is not None and result.numel() and result.data_ptr() != out.data_ptr():
        yield Breach("result", "is not a view of the buffer that was given")
    slots, tokens = result.cpu().numpy(), call.facts["tokens"]
    if len(slots) < tokens:
        yield Breach("result", "has fewer entries than there are tokens")
        return
    if (slots[tokens:] != -1).any():
        yield Breach("result", "gives a slot to an entry behind the last token")
    made = batch_arrays(batch)
    live = slots[:tokens] >= 0
    positions = token_positions(made.query_start_loc, made.num_computed_tokens)
    if (slots[:tokens][live] % batch.block_size != positions[live] % batch.block_size).any():
        yield Breach("result", "puts a token at another offset of its block")
    kept = slots[:tokens][live]
    if not batch_shares_blocks(batch) and len(np.unique(kept)) != len(kept):
        yield Breach("result", "gives two tokens the same slot")
    owners = np.repeat(np.arange(made.num_reqs), np.diff(made.query_start_loc))[live]
    written = owners << _BLOCK_BITS | kept // batch.block_size
    if not np.isin(written, _owned(batch)).all():
        yield Breach("result", "writes into a block that its request does not own")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Breach]:
    """Tokens are written to their slots, then read through the block table."""
    expected, params = expected_tokens(call.facts["batch"]), call.facts["params"]
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
    """Row and block id, in one number, of every live block."""
    counts = [len(blocks) for blocks in batch.blocks]
    rows = np.repeat(np.arange(len(counts)), counts)
    return rows << _BLOCK_BITS | np.array([b for row in batch.blocks for b in row], dtype=np.int64)


def batch_shares_blocks(batch: Batch) -> bool:
    """Whether two requests have a block in common."""
    blocks = [block for row in batch.blocks for block in row]
    return len(set(blocks)) != len(blocks)


def _out(call: Call) -> torch.Tensor:
    offsets: torch.Tensor = call.args[0]
    return offsets.new_zeros(call.facts["tokens"] + 3, dtype=torch.int64)


def _over(call: Call) -> torch.Tensor:
    """A buffer whose last entry lies on the first computed length."""
    room = call.facts["tokens"] + 3
    memory: torch.Tensor = call.args[1].new_zeros(room + len(call.args[1]), dtype=torch.int64)
    lengths = memory[room - 1 : -1]
    lengths.copy_(call.args[1])
    call.args[1] = lengths
    return memory[:room]


def _kwarg(field: str, make: Any, error: type[Exception] = MetadataError) -> Fault:
    def spoil(call: Call) -> None:
        call.kwargs[field] = make(call)

    return Fault(field=field, spoil=spoil, error=error)


def _needs_tokens(case: Case) -> bool:
    return case.num_tokens > 0


def _drop_row(position: int, field: str) -> Fault:
    def spoil(call: Call) -> None:
        call.args[position] = call.args[position][:-1]

    return Fault(field=field, spoil=spoil, error=MetadataError, applies=_needs_tokens)


def _on_cpu(change: Any, position: int, field: str) -> Fault:
    """Values are only read where that needs no synchronisation: on the CPU."""

    def spoil(call: Call) -> None:
        call.args[position] = change(call.args[position])

    return Fault(
        field=field, spoil=spoil, error=MetadataError, applies=_needs_tokens, cpu_only=True
    )


build_slot_mapping = Operation(
    name=NAME,
    section="5",
    summary="the cache slot of every token of a batch",
    cases=_cases,
    boundaries=_boundaries,
    from_batch=_steps,
    timed=lambda batch: [_case(batch)],
    prepare=_prepare,
    outputs=_outputs,
    invariants=_invariants,
    consume=_consumed,
    shares=frozenset({"result", "out"}),
    kernels=True,
    syncs=lambda case: case.params["num_padded"] is None and case.params["out_spare"] is None,
    faults={
        "block size of 0": wrong_value(3, "block_size", 0),
        "block size of another type": wrong_type(3, "block_size"),
        "offsets of another type": wrong_type(0, "query_start_loc"),
        "no offsets": wrong_value(0, "query_start_loc", torch.zeros(0, dtype=torch.int32)),
        "one row of computed tokens missing": _drop_row(1, "num_computed_tokens"),
        "one row of blocks missing": _drop_row(2, "block_table"),
        "float block table": _on_cpu(lambda table: table.float(), 2, "block_table"),
        "offsets that fall": _on_cpu(
            lambda offsets: torch.cat([offsets[:-1], -1 - offsets[:1]]), 0, "query_start_loc"
        ),
        "negative computed tokens": _on_cpu(lambda c: -1 - c, 1, "num_computed_tokens"),
        "padded length below the tokens": Fault(
            field="num_padded_tokens",
            spoil=lambda call: call.kwargs.update(num_padded_tokens=0),
            error=MetadataError,
            applies=_needs_tokens,
            cpu_only=True,
        ),
        "negative padded length": _kwarg("num_padded_tokens", lambda _: -1),
        "int32 buffer": _kwarg("out", lambda call: _out(call).int()),
        "2-D buffer": _kwarg("out", lambda call: _out(call)[None]),
        "buffer of another type": _kwarg("out", lambda _: [0] * 4, TypeError),
        "short buffer": Fault(
            field="out",
            spoil=lambda call: call.kwargs.update(out=_out(call)[:0]),
            error=MetadataError,
            applies=_needs_tokens,
            cpu_only=True,
        ),
        "buffer that is an input": Fault(
            field="out",
            spoil=lambda call: call.kwargs.update(out=_over(call)),
            error=MetadataError,
            applies=_needs_tokens,
        ),
        "window of another batch": _kwarg("start_idx", lambda call: call.args[0]),
    },
)

OPERATIONS = (build_slot_mapping,)
