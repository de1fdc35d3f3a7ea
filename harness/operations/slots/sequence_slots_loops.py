"""Operations of SPEC.md section 5: the two loops over positions in `compute_slot_mapping`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.model.call import Call, Facts
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.params import Blocks, BlockSize, Params, Tokens
from attnproof.harness.operations.slots.sequence_slots import (
    BLOCK_SIZES,
    all_but_last,
    blocks_problem,
    drawn_blocks,
    held_blocks,
    live_blocks,
    named_ranges,
    slot_invariants,
    slot_outputs,
    written_violations,
)
from attnproof.reference.interface import MetadataError

NAMES = ("_compute_slot_mapping_python", "_compute_slot_mapping_numpy")
_ARGS = ("blocks", "range_start", "range_end", "block_size")


class _Params(Params):
    blocks: Blocks
    """Block ids of the sequence."""
    range_start: Tokens
    """First position."""
    range_end: Tokens
    """End of the positions."""
    block_size: BlockSize
    """Tokens of a block."""


def _problem(case: Case) -> str:
    params = case.params
    if params["range_start"] > params["range_end"]:
        return "range_start: beyond range_end"
    return blocks_problem(params["blocks"], params["range_end"], params["block_size"])


def _case(name: str, *values: Any) -> Case:
    return Case(name, None, dict(zip(_ARGS, values, strict=True)))


def _operation(name: str) -> Operation:
    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        block_size = draw(st.sampled_from(BLOCK_SIZES))
        start = draw(st.integers(0, 40))
        stop = start + draw(st.integers(0, 40))
        blocks = draw(drawn_blocks(block_size, stop))
        return _case(name, blocks, start, stop, block_size)

    def boundaries() -> Iterator[tuple[str, Case]]:
        yield "empty range", _case(name, [5], 2, 2, 4)
        yield "one token", _case(name, [5], 2, 3, 4)
        yield "across blocks", _case(name, [5, 2, 9], 3, 10, 4)
        yield "long range", _case(name, live_blocks(16, 5000), 7, 5000, 16)
        for place, values in named_ranges():
            yield place, _case(name, *values)

    def steps(batch: Batch) -> Iterator[Case]:
        for row in range(min(1, batch.num_requests)):
            start = batch.computed_lens[row]
            stop = start + batch.query_lens[row]
            yield _case(name, list(batch.blocks[row]), start, stop, batch.block_size)

    def prepare(case: Case, pattern: int, _device: str) -> Call:
        others = {key: case.params[key] for key in _ARGS[1:]}
        slots, blocks = [11, -1], held_blocks(case.params, others["range_start"], pattern)
        return Call(
            {"slot_mapping": slots, "block_table": blocks, **others},
            plain={"block_table": blocks},
            plain_written={"slot_mapping": slots},
            facts=Facts(block_size=case.params["block_size"]),
        )

    def last_block(blocks: list[Any], error: type[Exception] = MetadataError) -> Fault:
        """Return a fault: `blocks` for the last one that a position needs, and what follows it."""
        return Fault(
            "block_table",
            lambda ids, stop, size: [*all_but_last(ids, stop, size), *blocks],
            error=error,
            applies=has_positions,
            reads=("range_end", "block_size"),
        )

    def has_positions(case: Case) -> bool:
        return bool(case.params["range_start"] < case.params["range_end"])

    return Operation(
        name=name,
        section="5",
        summary="appends the slots of a range of positions to a list",
        inputs=Inputs(
            params=_Params,
            problem=_problem,
            has_batch=False,
            cases=cases,
            boundaries=boundaries,
            from_batch=steps,
            faults={
                "position beyond the block table": last_block([]),
                "negative block id": last_block([-1]),
                "float block id": last_block([3.0], TypeError),
                "block size of 0": wrong_value("block_size", 0),
                "negative start": wrong_value("range_start", -1),
                "end of another type": wrong_type("range_end"),
                "slots of another type": wrong_type("slot_mapping"),
            },
        ),
        call=FunctionCall(prepare=prepare, outputs=slot_outputs),
        contract=Contract(
            invariants=slot_invariants,
            consume=lambda call, outputs: written_violations(
                call["block_table"],
                (call["range_start"], call["range_end"]),
                call["block_size"],
                outputs,
            ),
        ),
        bench=Bench(cases=lambda batch: steps(batch) if batch.num_requests == 1 else ()),
    )


OPERATIONS = tuple(_operation(name) for name in NAMES)
