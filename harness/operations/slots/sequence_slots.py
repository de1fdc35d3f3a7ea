"""Operations of SPEC.md section 5 on the Python lists of one sequence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK
from attnproof.harness.consumer.batch import expected_tokens_uncached, slot_violations
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import returned, wrong_type, wrong_value
from attnproof.reference.interface import MetadataError

START, SLOTS, EMPTY = (
    "compute_slot_mapping_start_idx",
    "compute_slot_mapping",
    "is_block_tables_empty",
)
LOOPS = ("_compute_slot_mapping_python", "_compute_slot_mapping_numpy")
_SEQ_ID = 7
_BLOCK_SIZES = (4, 1, 2, 16, 3, 256)


_START_ARGS = ("is_prompt", "query_len", "context_len", "sliding_window")


def _start_case(*values: Any) -> Case:
    return Case(START, None, dict(zip(_START_ARGS, values, strict=True)))


def _start_cases() -> st.SearchStrategy[Case]:
    lengths = st.integers(0, 100)
    return st.builds(_start_case, st.booleans(), lengths, lengths, st.none() | st.integers(1, 60))


def _start_boundaries() -> Iterator[tuple[str, Case]]:
    for is_prompt in (True, False):
        yield f"no window, prompt {is_prompt}", _start_case(is_prompt, 9, 0, None)
        for query_len in (3, 4, 5):
            yield (
                f"query {query_len} against a window of 4, prompt {is_prompt}",
                _start_case(is_prompt, query_len, 2, 4),
            )
    yield "no tokens", _start_case(True, 0, 0, 1)


def _start_steps(batch: Batch) -> Iterator[Case]:
    if batch.num_requests:
        query_len, context_len = batch.query_lens[-1], batch.computed_lens[-1]
        yield _start_case(query_len > 1, query_len, context_len, 1 + batch.num_tokens // 2)


def _start_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    is_prompt, query_len, _, window = call.args.values()
    kept = query_len - outputs["result"]
    if kept != (min(query_len, window) if is_prompt and window else query_len):
        yield Violation("result", "keeps another number of tokens than the window has")


compute_slot_mapping_start_idx = Operation(
    name=START,
    section="5",
    summary="first position of a sequence that gets a slot",
    inputs=Inputs(
        cases=_start_cases,
        boundaries=_start_boundaries,
        from_batch=_start_steps,
        faults={
            "negative query": wrong_value("query_len", -1),
            "negative context": wrong_value("context_len", -1),
            "window of 0": wrong_value("sliding_window", 0),
            "query of another type": wrong_type("query_len"),
            "prompt of another type": wrong_type("is_prompt"),
        },
    ),
    call=FunctionCall(
        prepare=lambda case, _pattern, _device: Call(
            {name: case.params[name] for name in _START_ARGS}
        ),
        outputs=returned,
    ),
    contract=Contract(invariants=_start_invariants),
    bench=Bench(cases=lambda batch: _start_steps(batch) if batch.num_requests == 1 else ()),
    built_in=BuiltIn(shared="a difference of two numbers"),
)

_SLOT_ARGS = ("is_profile_run", "seq_len", "context_len", "start_idx", "block_size", "blocks")


def _slots_case(*values: Any) -> Case:
    return Case(SLOTS, None, dict(zip(_SLOT_ARGS, values, strict=True)))


def _live(block_size: int, seq_len: int, first: int = 0) -> list[int]:
    count = -(-seq_len // block_size)
    return list(range(first + count - 1, first - 1, -1))


@st.composite
def _slots_cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from(_BLOCK_SIZES))
    context_len = draw(st.integers(0, 40))
    seq_len = context_len + draw(st.integers(0, 40) | st.just(block_size))
    start_idx = draw(st.sampled_from((0, 0, context_len, seq_len // 2, seq_len + 2)))
    first = draw(st.sampled_from((0, 5, HIGHEST_BLOCK - 80)))
    blocks = _live(block_size, seq_len, first)
    return _slots_case(draw(st.booleans()), seq_len, context_len, start_idx, block_size, blocks)


def _slots_boundaries() -> Iterator[tuple[str, Case]]:
    yield "SPEC example", _slots_case(False, 10, 0, 2, 4, [0, 1, 0])
    yield "profile run", _slots_case(True, 10, 0, 0, 4, [])
    yield "decode", _slots_case(False, 9, 8, 0, 4, [3, 1, 8])
    yield "continued prefill", _slots_case(False, 300, 200, 0, 16, _live(16, 300))
    yield "window beyond the sequence", _slots_case(False, 6, 2, 9, 4, [4, 5])
    yield "nothing new", _slots_case(False, 5, 5, 0, 4, [4, 5])
    yield "highest block id", _slots_case(False, 600, 0, 0, 256, _live(256, 600, HIGHEST_BLOCK - 2))
    yield "more tokens than blocks of any size", _slots_case(False, 5000, 3, 0, 1, _live(1, 5000))


def _slots_steps(batch: Batch) -> Iterator[Case]:
    for row in range(min(1, batch.num_requests)):
        context_len = batch.computed_lens[row]
        seq_len = context_len + batch.query_lens[row]
        blocks = list(batch.blocks[row])
        yield _slots_case(False, seq_len, context_len, 0, batch.block_size, blocks)


def _prepare_slots(case: Case, _pattern: int, _device: str) -> Call:
    params = case.params
    slots = [11, -1]
    tables = None
    if not params["is_profile_run"]:
        tables = {_SEQ_ID - 1: [90], _SEQ_ID: list(params["blocks"]), _SEQ_ID + 1: [91]}
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


def _slot_outputs(call: Call, result: Any) -> Outputs:
    return {"slot_mapping": list(call.plain_written["slot_mapping"]), "result": result}


def _slot_invariants(_call: Call, outputs: Outputs) -> Iterator[Violation]:
    slots = outputs["slot_mapping"]
    if slots[:2] != [11, -1]:
        yield Violation("slot_mapping", "loses what the list held before")
    if not all(type(slot) is int for slot in slots):
        yield Violation("slot_mapping", "holds something other than Python ints")


def _slots_consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each new token is written to the slot that its sequence's blocks give it."""
    profile, _, seq_id, seq_len, context_len, start_idx, block_size, tables = call.args.values()
    if profile:
        if any(slot != -1 for slot in outputs["slot_mapping"][2:]):
            yield Violation("slot_mapping", "writes tokens of a profile run")
        return
    positions = (context_len, seq_len)
    yield from _written(tables[seq_id], positions, block_size, outputs, start_idx)


def _written(
    blocks: list[int],
    positions: tuple[int, int],
    block_size: int,
    outputs: Outputs,
    start_idx: int = 0,
) -> Iterator[Violation]:
    first, stop = positions  # [first, stop)
    if first >= stop:
        return
    expected = expected_tokens_uncached(
        Batch(block_size, (stop - first,), (first,), (tuple(blocks),))
    )
    unwritten = expected.positions < start_idx
    slots = outputs["slot_mapping"][2:]
    yield from slot_violations(expected, slots, "slot_mapping", unwritten=unwritten)


def _shorten(tables: dict[int, list[int]]) -> dict[int, list[int]]:
    return {_SEQ_ID: tables[_SEQ_ID][:-1]}


def _writes(case: Case) -> bool:
    params = case.params
    first = max(params["start_idx"], params["context_len"])
    return not params["is_profile_run"] and first < params["seq_len"]


def _last_block(block: Any, error: type[Exception], least: int = 1) -> Fault:
    """Return the fault of another last block in a table of at least `least` blocks."""

    def change(tables: dict[int, list[int]]) -> dict[int, list[Any]]:
        return {_SEQ_ID: [*tables[_SEQ_ID][:-1], block]}

    def applies(case: Case) -> bool:
        return _writes(case) and len(case.params["blocks"]) >= least

    return Fault("block_tables", change, error=error, applies=applies)


def _not_profile(case: Case) -> bool:
    return not case.params["is_profile_run"]


compute_slot_mapping = Operation(
    name=SLOTS,
    section="5",
    summary="appends the slots of one sequence's new tokens to a list",
    inputs=Inputs(
        cases=_slots_cases,
        boundaries=_slots_boundaries,
        from_batch=_slots_steps,
        faults={
            "position beyond the block table (K14)": Fault(
                "block_tables", _shorten, "block_table", applies=_writes
            ),
            "sequence without a block table": Fault(
                "block_tables", lambda _: {_SEQ_ID + 1: [91]}, applies=_not_profile
            ),
            "negative sequence": wrong_value("seq_len", -1),
            "negative context": wrong_value("context_len", -1, _not_profile),
            "negative start": wrong_value("start_idx", -1, _not_profile),
            "block size of 0": wrong_value("block_size", 0, _not_profile),
            "sequence of another type": wrong_type("seq_len"),
            "slots of another type": wrong_type("slot_mapping"),
            "tables of another type": wrong_type("block_tables", applies=_not_profile),
            "profile run of another type": wrong_type("is_profile_run"),
            "block without an id": _last_block(None, TypeError),
            "float block id": _last_block(3.0, TypeError),
            "negative block id": _last_block(-1, MetadataError),
            "float id among many": _last_block(3.0, TypeError, 8),
            "negative id among many": _last_block(-1, MetadataError, 8),
        },
    ),
    call=FunctionCall(prepare=_prepare_slots, outputs=_slot_outputs),
    contract=Contract(invariants=_slot_invariants, consume=_slots_consumed),
    bench=Bench(cases=lambda batch: _slots_steps(batch) if batch.num_requests == 1 else ()),
)

_LOOP_ARGS = ("blocks", "range_start", "range_end", "block_size")


def _loop_case(name: str, *values: Any) -> Case:
    return Case(name, None, dict(zip(_LOOP_ARGS, values, strict=True)))


def _loop_operation(name: str) -> Operation:
    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        block_size = draw(st.sampled_from(_BLOCK_SIZES))
        start = draw(st.integers(0, 40))
        stop = start + draw(st.integers(0, 40))
        first = draw(st.sampled_from((0, 3, HIGHEST_BLOCK - 80)))
        return _loop_case(name, _live(block_size, stop, first), start, stop, block_size)

    def boundaries() -> Iterator[tuple[str, Case]]:
        yield "empty range", _loop_case(name, [5], 2, 2, 4)
        yield "one token", _loop_case(name, [5], 2, 3, 4)
        yield "across blocks", _loop_case(name, [5, 2, 9], 3, 10, 4)
        yield "highest block id", _loop_case(name, [HIGHEST_BLOCK], 0, 256, 256)
        yield "long range", _loop_case(name, _live(16, 5000), 7, 5000, 16)

    def steps(batch: Batch) -> Iterator[Case]:
        for row in range(min(1, batch.num_requests)):
            start = batch.computed_lens[row]
            stop = start + batch.query_lens[row]
            yield _loop_case(name, list(batch.blocks[row]), start, stop, batch.block_size)

    def prepare(case: Case, _pattern: int, _device: str) -> Call:
        slots, blocks = [11, -1], list(case.params["blocks"])
        others = {key: case.params[key] for key in _LOOP_ARGS[1:]}
        return Call(
            {"slot_mapping": slots, "block_table": blocks, **others},
            plain={"block_table": blocks},
            plain_written={"slot_mapping": slots},
            facts=Facts(block_size=case.params["block_size"]),
        )

    def last_block(block: Any, error: type[Exception]) -> Fault:
        return Fault(
            "block_table", lambda ids: [*ids[:-1], block], error=error, applies=has_positions
        )

    def has_positions(case: Case) -> bool:
        return bool(case.params["range_start"] < case.params["range_end"])

    return Operation(
        name=name,
        section="5",
        summary="appends the slots of a range of positions to a list",
        inputs=Inputs(
            cases=cases,
            boundaries=boundaries,
            from_batch=steps,
            faults={
                "position beyond the block table": Fault(
                    "block_table", lambda ids: ids[:-1], applies=has_positions
                ),
                "negative block id": last_block(-1, MetadataError),
                "float block id": last_block(3.0, TypeError),
                "block size of 0": wrong_value("block_size", 0),
                "negative start": wrong_value("range_start", -1),
                "end of another type": wrong_type("range_end"),
                "slots of another type": wrong_type("slot_mapping"),
            },
        ),
        call=FunctionCall(prepare=prepare, outputs=_slot_outputs),
        contract=Contract(
            invariants=_slot_invariants,
            consume=lambda call, outputs: _written(
                call["block_table"],
                (call["range_start"], call["range_end"]),
                call["block_size"],
                outputs,
            ),
        ),
        bench=Bench(cases=lambda batch: steps(batch) if batch.num_requests == 1 else ()),
    )


def _empty_case(tables: dict[str, Any] | None) -> Case:
    return Case(EMPTY, None, {"block_tables": tables})


def _empty_cases() -> st.SearchStrategy[Case]:
    table = st.none() | st.lists(st.integers(0, 9), max_size=2)
    keys = st.sampled_from(("0", "1", "2"))
    return st.builds(_empty_case, st.none() | st.dictionaries(keys, table, max_size=3))


def _empty_boundaries() -> Iterator[tuple[str, Case]]:
    yield "no tables", _empty_case(None)
    yield "empty dict", _empty_case({})
    yield "only None", _empty_case({"0": None, "1": None})
    yield "an empty table counts", _empty_case({"0": None, "1": []})
    yield "first is None", _empty_case({"0": None, "1": [3]})
    yield "last is None", _empty_case({"0": [3], "1": None})


def _empty_steps(batch: Batch) -> Iterator[Case]:
    rows = batch.blocks[:3]
    yield _empty_case({str(row): list(blocks[:4]) or None for row, blocks in enumerate(rows)})


def _prepare_empty(case: Case, _pattern: int, _device: str) -> Call:
    tables = case.params["block_tables"]
    made = None if tables is None else {int(key): table for key, table in tables.items()}
    return Call({"block_tables": made}, plain={"block_tables": made})


def _empty_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    tables = call["block_tables"] or {}
    if outputs["result"] is (len([key for key in tables if tables[key] is not None]) > 0):
        yield Violation("result", "does not agree with the block tables")


is_block_tables_empty = Operation(
    name=EMPTY,
    section="5",
    summary="True if no sequence has a block table",
    inputs=Inputs(
        cases=_empty_cases,
        boundaries=_empty_boundaries,
        from_batch=_empty_steps,
        faults={"tables of another type": wrong_type("block_tables")},
    ),
    call=FunctionCall(prepare=_prepare_empty, outputs=returned),
    contract=Contract(invariants=_empty_invariants),
    bench=Bench(cases=lambda batch: _empty_steps(batch) if batch.num_requests == 8 else ()),
    built_in=BuiltIn(shared="one pass over a dict"),
)

OPERATIONS = (
    compute_slot_mapping_start_idx,
    compute_slot_mapping,
    *(_loop_operation(name) for name in LOOPS),
    is_block_tables_empty,
)
