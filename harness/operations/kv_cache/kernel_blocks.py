"""Operation of SPEC.md section 12: the block table of a kernel with smaller blocks.

Bug classes: padding that becomes a block, the stride of a packed cache taken for the number of
parts, products in 32 bits, one buffer for two micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import batch_arrays, row_strides, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place, child_outputs, of_children
from attnproof.harness.model.violation import Violation, in_child
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.kv_cache.kernel_block_cases import (
    NAME,
    KernelParams,
    boundaries,
    cases,
    problem,
    sizes_of,
    steps,
    unreal,
)
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference import map_to_kernel_block_table as reference
from attnproof.reference.checks.slots import overlap


@dataclass(frozen=True, kw_only=True)
class _TableFacts(Facts):
    batch: Batch
    rows: tuple[slice, slice]
    """Requests of each micro-batch."""
    tables: tuple[torch.Tensor, torch.Tensor]
    buffers: tuple[torch.Tensor | None, torch.Tensor | None]
    free: np.ndarray
    """(R, W) bool, True for entries of the given table that are stale."""
    parts: int
    step: int
    """Kernel blocks from one block to the next."""


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    made, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    padding, step = params.get("padding", False), 2 if batch.strided else 1
    table = made.block_table_with(-1 if padding else stale)
    table = table.astype(np.int64 if params.get("wide") else np.int32)
    parts, stride = sizes_of(case)
    cut = min(params.get("cut", 0), len(table))
    rows = slice(0, cut), slice(cut, len(table))
    pieces = [table_piece(f"block_table_{i}", table[part], step) for i, part in enumerate(rows)]
    if params.get("buffers"):
        spare, width = params.get("spare", 0), table.shape[1] * parts
        for i, part in enumerate(rows):
            shape = part.stop - part.start + spare, width + spare
            buffer = np.full(shape, stale, dtype=table.dtype)
            pieces.append(Piece(f"out_{i}", buffer, False, row_strides(shape, step)))
    arena = Arena(pieces, stale, device)
    tables = arena.tensors["block_table_0"], arena.tensors["block_table_1"]
    buffers = arena.tensors.get("out_0"), arena.tensors.get("out_1")
    args = {
        "block_table": tables[0],
        "block_size": batch.block_size,
        "kernel_block_size": params["kernel"],
        "stride": params.get("stride"),
        "out": buffers[0],
    }
    facts = _TableFacts(
        batch=batch,
        rows=rows,
        tables=tables,
        buffers=buffers,
        free=np.zeros_like(made.stale_blocks) if padding else made.stale_blocks,
        parts=parts,
        step=stride,
    )
    return Call(args, arena=arena, written=frozenset({"out_0", "out_1"}), facts=facts)


def _map_both(map_table: Any, call: Call) -> list[Any]:
    """Map the tables of both micro-batches, and note whether the results are apart."""
    first = map_table(*call.args.values())
    changed = {"block_table": call.facts.tables[1], "out": call.facts.buffers[1]}
    results = [first, map_table(*(call.args | changed).values())]
    given = call.facts.tables
    call.observed["apart"] = not overlap(*results)
    call.observed["in_place"] = [
        result.data_ptr() == table.data_ptr() for result, table in zip(results, given, strict=True)
    ]
    call.observed["in_buffers"] = [
        buffer is None or not result.numel() or result.data_ptr() == buffer.data_ptr()
        for result, buffer in zip(results, call.facts.buffers, strict=True)
    ]
    return results


def _outputs(call: Call, result: Any) -> Outputs:
    """Return results and buffers, with 0 in place of what stale entries became."""
    children = []
    for table, buffer, part in zip(result, call.facts.buffers, call.facts.rows, strict=True):
        free = torch.from_numpy(np.repeat(call.facts.free[part], call.facts.parts, axis=1))
        free = free.to(table.device)
        children.append({"result": table.clone()})
        if table.shape == free.shape:
            children[-1]["result"][free] = 0
        if buffer is not None:
            children[-1]["out"] = buffer.clone()
            children[-1]["out"][: free.shape[0], : free.shape[1]][free] = 0
    return of_children(children)


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that results are apart, in their buffers, and hold no padding as a block."""
    facts = call.facts
    if not call.observed.get("apart", True):
        yield Violation("[].result", "shares memory with another micro-batch's")
    if not all(call.observed.get("in_buffers", [])):
        yield Violation("[].result", "is not a view of the buffer that was given")
    identity = facts.step == 1 and facts.buffers[0] is None
    if identity and not all(call.observed.get("in_place", [])):
        yield Violation("[].result", "is not the table itself where blocks are kernel blocks")
    made = batch_arrays(facts.batch)
    for index, part in enumerate(facts.rows):
        result = int64_array(child_outputs(outputs, index)["result"])
        padded = np.repeat(made.stale_blocks[part] & ~facts.free[part], facts.parts, axis=1)
        if result.shape == padded.shape and (result[padded] != -1).any():
            yield from in_child([Violation("result", "gives padding a block")], index)


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each position of a request is read at the same place through either table.

    A place is a token in memory where block b begins at kernel block `b * step`.
    """
    facts, made = call.facts, batch_arrays(call.facts.batch)
    size, kernel = facts.batch.block_size, call["kernel_block_size"]
    for index, part in enumerate(facts.rows):
        lengths = made.seq_lens[part].astype(np.int64)
        rows = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        block = made.block_table[part].astype(np.int64)[rows, positions // size]
        right = block * facts.step * kernel + positions % size
        table = int64_array(child_outputs(outputs, index)["result"])
        if table.shape[0] != len(lengths) or table.shape[1] * kernel < lengths.max(initial=0):
            text = "has no kernel block for a position"
            yield from in_child([Violation("result", text)], index)
            return
        read = table[rows, positions // kernel] * kernel + positions % kernel
        wrong = np.flatnonzero(read != right)
        if len(wrong):
            at = int(wrong[0])
            detail = (
                f"position {positions[at]} of request {rows[at] + part.start} is in block "
                f"{block[at]}, at token {right[at]} of the cache, and read at token {read[at]}"
            )
            found = Violation("result", "reads a position from another place", detail)
            yield from in_child([found], index)
            return


def _diagnose(_call: Call, _place: Place, expected: Any, got: Any) -> str:
    """Return the diagnosis of padding that is wrong everywhere, "" for other mistakes."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = expected != got
    only_padding = bool(wrong.any()) and bool((expected[wrong] == -1).all())
    return "padding becomes a block" if only_padding else ""


def _small(_: torch.Tensor | None, table: torch.Tensor) -> torch.Tensor:
    """Return a buffer with one column too few."""
    return table.new_zeros((table.shape[0], max(0, table.shape[1] - 1)))


def _has_entries(case: Case) -> bool:
    return bool(case.num_requests) and case.params.get("cut", 0) > 0


map_to_kernel_block_table = Operation(
    name=NAME,
    section="12",
    summary="the block table of a kernel with smaller blocks",
    inputs=Inputs(
        params=KernelParams,
        whole_contexts=True,
        problem=problem,
        unreal=unreal,
        cases=cases,
        boundaries=boundaries,
        from_batch=steps,
        faults=faults_of(reference, _prepare)
        | {
            "kernel block size that does not divide": Fault(
                "kernel_block_size", lambda _, size: size + 1, given=("block_size",)
            ),
            "stride below the kernel blocks of a block": Fault(
                ("block_size", "kernel_block_size", "stride"),
                lambda size, *_: (2 * size, size, 1),
                "stride",
            ),
            "buffer of too few columns": Fault(
                "out", _small, applies=_has_entries, given=("block_table",)
            ),
            "buffer of too few rows": Fault(
                "out",
                lambda _, table: table.new_zeros((0, 2**12)),
                applies=_has_entries,
                given=("block_table",),
            ),
        },
    ),
    call=ClassCall(prepare=_prepare, use=_map_both, outputs=_outputs),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
        may_alias=frozenset({"[].result", "[].out"}),
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (map_to_kernel_block_table,)
