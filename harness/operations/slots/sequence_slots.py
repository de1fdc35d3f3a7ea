"""Operation of SPEC.md section 5: the slots of one sequence's new tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import BLOCK_ORDERS, HIGHEST_BLOCK, block_lists
from attnproof.harness.cases.magnitudes import FAR_POSITIONS, ROUNDED_SIZES
from attnproof.harness.consumer.batch import expected_tokens_uncached, slot_violations
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.verdict import Kind
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import Blocks, BlockSize, Params, Tokens
from attnproof.reference.interface import MetadataError

NAME = "compute_slot_mapping"
BLOCK_SIZES = (4, 1, 2, 16, 3, 48, 49, 41, 256)
"""Tokens per block; multiples of 49 and 41 by a rounded reciprocal are in the block before."""
_SEQ_ID = 7
_LATER_BLOCKS = (91, 92)
"""Blocks that a sequence holds for later tokens."""
_ARGS = ("is_profile_run", "seq_len", "context_len", "start_idx", "block_size", "blocks")


class _Params(Params):
    is_profile_run: bool
    seq_len: Tokens
    context_len: Tokens
    start_idx: Tokens
    block_size: BlockSize
    blocks: Blocks


def _problem(case: Case) -> str:
    params = case.params
    if params["is_profile_run"]:
        return ""
    return blocks_problem(params["blocks"], params["seq_len"], params["block_size"])


def blocks_problem(blocks: list[int], tokens: int, block_size: int) -> str:
    """Return why the blocks cannot hold the tokens, "" if they can."""
    if len(blocks) * block_size >= tokens:
        return ""
    return f"blocks: {len(blocks)} for {tokens} tokens of block size {block_size}"


def _case(*values: Any) -> Case:
    return Case(NAME, None, dict(zip(_ARGS, values, strict=True)))


def live_blocks(block_size: int, seq_len: int, first: int = 0) -> list[int]:
    """Return the blocks of a sequence in descending order; `first` is the lowest block id."""
    count = -(-seq_len // block_size)
    return list(range(first + count - 1, first - 1, -1))


def held_blocks(params: dict[str, Any], first: int, pattern: int) -> list[int]:
    """Return the blocks as an engine holds them that has freed those before position `first`.

    With the first poison pattern -1 stands in their place, and blocks for later tokens follow;
    no position needs them.
    """
    blocks = params["blocks"]
    columns = min(first // params["block_size"], len(blocks))
    return list(blocks) if pattern else [*[-1] * columns, *blocks[columns:], *_LATER_BLOCKS]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from(BLOCK_SIZES))
    context_len = draw(st.integers(0, 40))
    seq_len = context_len + draw(st.integers(0, 40) | st.just(block_size))
    start_idx = draw(st.sampled_from((0, 0, context_len, seq_len // 2, seq_len + 2)))
    blocks = draw(drawn_blocks(block_size, seq_len))
    return _case(draw(st.booleans()), seq_len, context_len, start_idx, block_size, blocks)


@st.composite
def drawn_blocks(draw: st.DrawFn, block_size: int, tokens: int) -> list[int]:
    """Draw the blocks of a sequence, in any order."""
    first = draw(st.sampled_from((0, 5, HIGHEST_BLOCK - 120)))  # 80 blocks with gaps
    order = draw(st.sampled_from(BLOCK_ORDERS))
    [blocks] = block_lists([tokens], [0], block_size, first=first, order=order)
    return list(blocks)


def named_ranges() -> Iterator[tuple[str, tuple[list[int], int, int, int]]]:
    """Yield blocks, first and last position, and block size, with their names."""
    yield "run of blocks but for one inside", ([5, 9, 7], 0, 11, 4)
    yield "highest block id", (live_blocks(256, 600, HIGHEST_BLOCK - 2), 0, 600, 256)
    yield "inside one large block", ([3], 200, 700, 1024)
    yield "from one large block to the next", ([3, 1], 700, 1700, 1024)
    for size in ROUNDED_SIZES:
        yield f"first positions of blocks of {size}", ([5, 2, 9, 4], size - 1, 3 * size + 2, size)
    for size in (16, 64, 128):
        for end in FAR_POSITIONS:
            blocks = live_blocks(size, end + 2)
            yield f"end of a block of {size} at {end}", (blocks, end - 2, end + 2, size)
    yield "more tokens than blocks of any size", (live_blocks(1, 5000), 3, 5000, 1)


def _boundaries() -> Iterator[tuple[str, Case]]:
    yield "SPEC example", _case(False, 10, 0, 2, 4, [0, 1, 0])
    yield "profile run", _case(True, 10, 0, 0, 4, [])
    yield "profile run of one token", _case(True, 1, 0, 0, 4, [5])
    yield "decode", _case(False, 9, 8, 0, 4, [3, 1, 8])
    yield "decode in a small block", _case(False, 2, 1, 0, 2, [5])
    yield "continued prefill", _case(False, 300, 200, 0, 16, live_blocks(16, 300))
    yield "window beyond the sequence", _case(False, 6, 2, 9, 4, [4, 5])
    yield "nothing new", _case(False, 5, 5, 0, 4, [4, 5])
    for name, (blocks, first, stop, size) in named_ranges():
        yield name, _case(False, stop, first, 0, size, blocks)


def _steps(batch: Batch) -> Iterator[Case]:
    for row in range(min(1, batch.num_requests)):
        context_len = batch.computed_lens[row]
        seq_len = context_len + batch.query_lens[row]
        blocks = list(batch.blocks[row])
        yield _case(False, seq_len, context_len, 0, batch.block_size, blocks)


def _prepare(case: Case, pattern: int, _device: str) -> Call:
    params = case.params
    first = max(params["start_idx"], params["context_len"])
    slots = [11, -1]
    tables = None
    if pattern or not params["is_profile_run"]:  # a profile run reads none
        blocks = held_blocks(params, first, pattern)
        tables = {_SEQ_ID - 1: [90], _SEQ_ID: blocks, _SEQ_ID + 1: [91]}
    return Call(
        {
            "is_profile_run": params["is_profile_run"],
            "slot_mapping": slots,
            "seq_id": _SEQ_ID,
            **{name: params[name] for name in ("seq_len", "context_len", "start_idx")},
            "block_size": params["block_size"],
            "block_tables": tables,
        },
        plain={"block_tables": tables},
        plain_written={"slot_mapping": slots},
        facts=Facts(block_size=params["block_size"]),
    )


def slot_outputs(call: Call, result: Any) -> Outputs:
    """Return the list of slots after the call, and the result."""
    return {"slot_mapping": list(call.plain_written["slot_mapping"]), "result": result}


def slot_invariants(_call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that the list keeps its first entries and holds Python ints only."""
    slots = outputs["slot_mapping"]
    if slots[:2] != [11, -1]:
        yield Violation("slot_mapping", "loses what the list held before")
    if not all(type(slot) is int for slot in slots):
        yield Violation("slot_mapping", "holds something other than Python ints", kind=Kind.TYPE)


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each new token is written to the slot that its sequence's blocks give it."""
    if call["is_profile_run"]:
        if any(slot != -1 for slot in outputs["slot_mapping"][2:]):
            yield Violation("slot_mapping", "writes tokens of a profile run")
        return
    table, positions = call["block_tables"][call["seq_id"]], (call["context_len"], call["seq_len"])
    yield from written_violations(table, positions, call["block_size"], outputs, call["start_idx"])


def written_violations(
    blocks: list[int],
    positions: tuple[int, int],
    block_size: int,
    outputs: Outputs,
    start_idx: int = 0,
) -> Iterator[Violation]:
    """Check that each position of [first, stop) is written to its slot in `blocks`.

    Positions below `start_idx` must not be written.
    """
    first, stop = positions
    if first >= stop:
        return
    expected = expected_tokens_uncached(
        Batch(block_size, (stop - first,), (first,), (tuple(blocks),))
    )
    unwritten = expected.positions < start_idx
    slots = outputs["slot_mapping"][2:]
    yield from slot_violations(expected, slots, "slot_mapping", unwritten=unwritten)


def all_but_last(blocks: list[int], stop: int, size: int) -> list[int]:
    """Return the blocks before the last one that a position before `stop` needs."""
    return blocks[: (stop - 1) // size]


def _shorten(tables: dict[int, list[int]], stop: int, size: int) -> dict[int, list[int]]:
    return {_SEQ_ID: all_but_last(tables[_SEQ_ID], stop, size)}


def _writes(case: Case) -> bool:
    params = case.params
    first = max(params["start_idx"], params["context_len"])
    return not params["is_profile_run"] and first < params["seq_len"]


def _last_block(block: Any, error: type[Exception], least: int = 1) -> Fault:
    """Return the fault of another last needed block in a table of at least `least` blocks."""

    def change(tables: dict[int, list[int]], stop: int, size: int) -> dict[int, list[Any]]:
        return {_SEQ_ID: [*all_but_last(tables[_SEQ_ID], stop, size), block]}

    def applies(case: Case) -> bool:
        return _writes(case) and len(case.params["blocks"]) >= least

    reads = ("seq_len", "block_size")
    return Fault("block_tables", change, error=error, applies=applies, reads=reads)


def _not_profile(case: Case) -> bool:
    return not case.params["is_profile_run"]


def _one_token(case: Case) -> bool:
    params = case.params
    return _not_profile(case) and params["seq_len"] == params["context_len"] + 1


_WRONG_ARGUMENTS = {
    "negative context": wrong_value("context_len", -1, _not_profile),
    "negative start": wrong_value("start_idx", -1, _not_profile),
    "block size of 0": wrong_value("block_size", 0, _not_profile),
    "slots of another type": wrong_type("slot_mapping"),
    "tables of another type": wrong_type("block_tables", applies=_not_profile),
}
"""Faults of single arguments, for any case and once more for those of one token."""


compute_slot_mapping = Operation(
    name=NAME,
    section="5",
    summary="appends the slots of one sequence's new tokens to a list",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        has_batch=False,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "position beyond the block table (K14)": Fault(
                "block_tables",
                _shorten,
                "block_table",
                applies=_writes,
                reads=("seq_len", "block_size"),
            ),
            "sequence without a block table": Fault(
                "block_tables", lambda _: {_SEQ_ID + 1: [91]}, applies=_not_profile
            ),
            "negative sequence": wrong_value("seq_len", -1),
            **_WRONG_ARGUMENTS,
            **{
                f"{name}, one token": replace(fault, applies=_one_token)
                for name, fault in _WRONG_ARGUMENTS.items()
            },
            "sequence of another type": wrong_type("seq_len"),
            "profile run of another type": wrong_type("is_profile_run"),
            "block without an id": _last_block(None, TypeError),
            "float block id": _last_block(3.0, TypeError),
            "negative block id": _last_block(-1, MetadataError),
            "float id among many": _last_block(3.0, TypeError, 8),
            "negative id among many": _last_block(-1, MetadataError, 8),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=slot_outputs),
    contract=Contract(invariants=slot_invariants, consume=_consumed),
    bench=Bench(cases=lambda batch: _steps(batch) if batch.num_requests == 1 else ()),
)

OPERATIONS = (compute_slot_mapping,)
