"""Operation of SPEC.md section 10: `build_slot_mapping` on every rank of a batch.

Bug classes: a local position that forgets the interleave within a turn, a token that two ranks
write or none, the column of a global position, products in 32 bits.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.ranks import Rank, rank_slot_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Operation
from attnproof.harness.model.place import Place, child_outputs, of_children
from attnproof.harness.model.violation import Violation, in_child
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive, one_of
from attnproof.harness.operations.shared.params import Positive
from attnproof.harness.operations.slots.slot_mapping import (
    BUFFER,
    IN_BUFFER,
    PADDED,
    PARAMETERS,
    PLAIN,
    WINDOW,
    batch_shares_blocks,
    buffer,
    may_sync,
    unreal,
    unwritten,
)
from attnproof.reference import build_slot_mapping as reference
from attnproof.reference.definition.definition import definition_of

_FUNCTION = "build_slot_mapping"


def _examples() -> Iterator[Example]:
    def ranks(size: int, interleave: int = 1, more: dict[str, Any] = PLAIN) -> dict[str, Any]:
        return {"size": size, "interleave": interleave, **more}

    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, spare_columns=2, order="descending")
    for size in (1, 2, 3):
        for interleave in (1, 2, 4):
            bug = " (K30)" if size > 1 and interleave == 4 else ""
            yield f"{size} ranks in turns of {interleave}{bug}", mixed, ranks(size, interleave)
    stale = BUFFER | {"spare": 5}
    yield "buffer with a stale tail (K17)", mixed, ranks(2, 2, stale)
    for name, form in (("", PADDED), (" in a longer buffer", IN_BUFFER)):
        yield f"padded length{name}", mixed, ranks(2, 2, form | {"num_padded_tokens": 4})
    window = {"start_idx": [0, 3, 0, 11]}
    yield "window", mixed, ranks(2, 2, WINDOW | window)
    yield "window in a buffer", mixed, ranks(2, 2, BUFFER | {"with_start_idx": True} | window)
    narrow = PLAIN | {"columns": 1}
    yield "sequence longer than its row's columns (K14)", mixed, ranks(2, 1, narrow)
    for edge in (-1, 0, 1):
        name = f"{32 + edge} tokens on two ranks of blocks of 8"
        yield name, make_batch([32 + edge], [0], 8), ranks(2, 4)
        yield f"continued at position {16 + edge}", make_batch([3], [16 + edge], 8), ranks(2, 8)
    yield "more ranks than tokens", make_batch([2, 1], [0, 3], 16), ranks(8, 16)
    rows = make_batch([], [], 4, padded_requests=3)
    yield "only padded rows", rows, ranks(2, 1, PADDED | {"num_padded_tokens": 3})
    for block_size in (1, 16, 256):
        highest = make_batch([40, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 60)
        yield f"highest block ids, block size {block_size} (K15)", highest, ranks(2)
    yield "more tokens than a kernel tile (K19)", make_batch([2000], [3], 16), ranks(2, 8)
    for tokens in (511, 512, 513):
        name = f"{tokens} tokens, a kernel tile has 512"
        yield name, make_batch([tokens], [5], 16), ranks(2)
    yield "position beyond 2**20", make_batch([3], [2**20 + 254], 256), ranks(4, 64)


def _steps(batch: Batch) -> Iterator[Step]:
    if batch.has_null_blocks:  # with fewer blocks a row, live positions would be in null blocks
        return
    size = {"size": 2 + batch.num_requests % 3, "interleave": batch.block_size}
    yield batch, BUFFER | size | {"spare": 2}


def _table(values: Values) -> np.ndarray:
    """Return (R, W) int32: the blocks that a rank needs, stale ids in all other columns."""
    arrays = values.batch
    needed = -(-arrays.seq_lens // (values.params["size"] * arrays.batch.block_size))
    table = arrays.block_table.copy()
    table[np.arange(table.shape[1]) >= needed[:, None]] = values.stale
    return table[:, : values.params["columns"]]


def _interleave(values: Values) -> int:
    """Return a divisor of the block size."""
    return math.gcd(values.params["interleave"], values.batch.batch.block_size)


class _OnEveryRank(ClassCall):
    """Calls of the function, one for each rank."""

    def names(self, _operation: str) -> tuple[str, ...]:
        """Return the name of the function."""
        return (_FUNCTION,)

    def offered(self, own: dict[str, Any], ours: dict[str, Any], *, built_in: bool) -> Any:
        """Return the candidate's function if it has parameters for ranks."""
        found = super().offered(own, ours, built_in=built_in)
        try:
            return found if "cp_size" in inspect.signature(found).parameters else None
        except (TypeError, ValueError):  # not a function, or one without a signature
            return None


def _ranks(call: Call) -> list[Rank]:
    return [Rank(call["cp_size"], r, call["cp_interleave"]) for r in range(call["cp_size"])]


def _build(build: Any, call: Call) -> list[dict[str, Any]]:
    """Return the slots of each rank, which take turns in the buffer."""
    outputs = []
    for rank in (call["cp_rank"], *range(1, call["cp_size"])):
        result = build(*call.args.values(), **call.kwargs | {"cp_rank": rank})
        made = {"result": result, "out": call["out"]}
        outputs.append({name: _kept(one) for name, one in made.items() if one is not None})
    return outputs


def _kept(value: Any) -> Any:
    """Return a copy: the next rank writes the buffer."""
    return value.clone() if isinstance(value, torch.Tensor) else value


def _outputs(_call: Call, result: Any) -> Outputs:
    return of_children(result)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    facts, slots = call.facts, list[np.ndarray]()
    for index, rank in enumerate(_ranks(call)):
        result = outputs[Place("result", child=index)]
        if not isinstance(result, torch.Tensor) or len(result) < facts.tokens:
            return
        slots.append(result.cpu().numpy()[: facts.tokens].astype(np.int64))
        yield from in_child(_rank_violations(call, slots[-1], rank), index)
    writers = sum((row >= 0).astype(np.int64) for row in slots)
    positions = expected_tokens(facts.batch).positions
    turns = positions // (facts.batch.block_size * len(slots))
    right = ~unwritten(call) & (turns < call["block_table"].shape[1])
    if np.any(writers != right):
        yield Violation("[].result", "does not give each token to exactly one rank")


def _rank_violations(call: Call, slots: np.ndarray, rank: Rank) -> Iterator[Violation]:
    """Read the positions of a rank's tokens back from their slots."""
    facts, expected = call.facts, expected_tokens(call.facts.batch)
    mine = slots >= 0
    kept, rows = slots[mine], expected.requests[mine]
    if not batch_shares_blocks(facts.batch) and len(np.unique(kept)) != len(kept):
        yield Violation("result", "gives two tokens the same slot")
    block, place = np.divmod(kept, facts.batch.block_size)
    match = expected.table[rows] == block[:, None]
    match &= ~np.asarray(batch_arrays(facts.batch).stale_blocks)[rows]
    if not match.any(1).all():
        yield Violation("result", "writes into a block that its request does not own")
        return
    local = match.argmax(1) * facts.batch.block_size + place if len(kept) else kept
    turn, within = np.divmod(local, rank.interleave)
    positions = (turn * rank.size + rank.rank) * rank.interleave + within
    if (positions != expected.positions[mine]).any():
        yield Violation("result", "is not the slot of the token's position")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each token is written on exactly the rank that owns it, where it is read."""
    expected, columns = expected_tokens(call.facts.batch), call["block_table"].shape[1]
    masked = unwritten(call)
    for index, rank in enumerate(_ranks(call)):
        for field, slots in child_outputs(outputs, index).items():
            found = rank_slot_violations(
                expected, rank, slots, field, columns=columns, unwritten=masked
            )
            yield from in_child(found, index)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name tokens that are written on a rank that does not own them, or not where they are."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    facts, wrong = call.facts, np.flatnonzero((expected != got).cpu().numpy())
    if place.child is None or not len(wrong) or wrong[-1] >= facts.tokens:
        return ""
    rank, positions = _ranks(call)[place.child], expected_tokens(facts.batch).positions[wrong]
    mine = positions // rank.interleave % rank.size == rank.rank
    if not mine.any():
        return "a slot for a token of another rank"
    without = mine.all() and (int64_array(got)[wrong] == -1).all()
    return "no slot on the rank that owns the token" if without else ""


def _operation() -> Operation:
    definition = definition_of(reference)
    assert definition is not None
    operation = derive(
        replace(definition, name="rank_slot_mapping"),
        section="10",
        summary="the cache slots of a batch on every rank of context parallelism",
        values={
            "block_table": _table,
            "out": buffer,
            "cp_size": lambda values: values.params["size"],
            "cp_rank": lambda _: 0,
            "cp_interleave": _interleave,
        },
        parameters=PARAMETERS
        | {
            "size": one_of(Annotated[int, Meta(ge=1, le=64)], 2, 3, 4, 8, 1),
            "interleave": one_of(Positive, 1, 2, 3, 4, 8, 256),
        },
        examples=_examples,
        steps=_steps,
        unreal=unreal,
        faults={
            "interleave that does not divide the block size": Fault(
                "cp_interleave", lambda _, size: size + 1, given=("block_size",)
            ),
            "block size that the interleave does not divide": Fault(
                ("block_size", "cp_interleave"), lambda size, _: (2 * size + 1, 2), "cp_interleave"
            ),
        },
        relations=None,
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
        may_alias=frozenset({"[].result", "[].out"}),
        may_sync=may_sync,
        built_in=BuiltIn(kernels=True),
    )
    prepare = operation.call.prepare
    return replace(operation, call=_OnEveryRank(prepare=prepare, use=_build, outputs=_outputs))


rank_slot_mapping = _operation()
OPERATIONS = (rank_slot_mapping,)
