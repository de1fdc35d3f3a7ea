"""Operation of SPEC.md section 11: the blocks that hold the states of state-space layers.

Bug classes: the block after the last token's where a sequence ends with its block, a negative
column of an empty sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.magnitudes import FLOAT_LIMITS, ROUNDED_SIZES
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in, one_of
from attnproof.harness.operations.shared.faults import wrong_value
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few
from attnproof.reference import mamba_get_block_table_tensor as reference


def _examples() -> Iterator[Example]:
    def example(seq_lens: list[int], block_size: int, speculative: int, **more: Any) -> Any:
        fields = {name: more.pop(name) for name in ("first", "spare_columns") if name in more}
        batch = make_batch(
            [min(1, s) for s in seq_lens], [max(0, s - 1) for s in seq_lens], block_size, **fields
        )
        return batch, {"speculative": speculative} | more

    around = [0, 1, 3, 4, 5, 7, 8, 9]
    for speculative in (0, 1, 3):
        name = f"{speculative} speculative blocks"
        yield name, *example(around, 4, speculative, spare_columns=1)
    for mode in ("all", "none"):
        yield f"mode {mode}", *example(around, 4, 2, mode=mode, spare_columns=1)
    yield "blocks of one token", *example([0, 1, 2, 9], 1, 1)
    yield "only empty sequences", *example([0, 0], 4, 2)
    yield "longest int32 sequence", *example([2**31 - 1, 1], 2**16, 1)
    for limit in FLOAT_LIMITS:
        size = limit // 2048
        for edge in (-1, 0, 1):
            lens = [limit + 3 * size + edge, 1]
            yield f"{edge:+d} of a block beyond {limit}", *example(lens, size, 0)
    for size in ROUNDED_SIZES:
        firsts = [blocks * size + edge for blocks in range(1, 8) for edge in (0, 1)]
        yield f"first positions of blocks of {size}", *example(firsts, size, 0)
    yield "more requests than a kernel tile", *example([i % 40 for i in range(700)], 4, 3)


def _table(values: Values) -> np.ndarray:
    """Return the batch's table with speculative blocks in each row, of ids of its own."""
    batch, count = values.batch, values.params["speculative"]
    table = batch.block_table_with(values.stale)
    rows, width = table.shape
    columns = np.maximum(batch.seq_lens.astype(np.int64) - 1, 0) // batch.batch.block_size
    ends = columns + 1 + count
    wider = np.full((rows, max(width, int(ends.max(initial=0)))), values.stale, np.int32)
    wider[:, :width] = table
    lasts = np.where(batch.seq_lens > 0, wider[np.arange(rows), columns], np.arange(rows))
    at = np.arange(wider.shape[1])
    behind = at >= np.where(batch.seq_lens > 0, columns + 1, 0)[:, None]
    ids = lasts[:, None] ^ (1 + at)
    dtype = np.int64 if batch.batch.dtype in ("int64", "int64 table") else np.int32
    return np.where(behind & (at < ends[:, None]), ids, wider).astype(dtype)


def _spec(values: Values) -> SimpleNamespace:
    return SimpleNamespace(
        block_size=values.batch.batch.block_size,
        num_speculative_blocks=values.params["speculative"],
    )


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
    return bool(case.params["mode"] != "none")


def _taken_rows(case: Case) -> bool:
    return _taken(case) and case.num_requests > 0


def _with_spec(field: str, value: Any) -> Fault:
    """Return the fault of a spec whose field has this value."""

    def change(spec: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(**vars(spec) | {field: value})

    return Fault("kv_cache_spec", change, field, applies=_taken)


mamba_get_block_table_tensor = derive_built_in(
    reference,
    section="11",
    summary="the blocks that hold the state of each sequence",
    values={
        "block_table": _table,
        "kv_cache_spec": _spec,
        "mamba_cache_mode": lambda values: values.params["mode"],
    },
    parameters={
        "speculative": one_of(Few, 1, 0, 2, 3),
        "mode": one_of(Literal["align", "all", "none"], "align", "all", "none"),
    },
    examples=_examples,
    faults={
        "another mode": wrong_value("mamba_cache_mode", "some"),
        "blocks of 0 tokens": _with_spec("block_size", 0),
        "negative number of speculative blocks": _with_spec("num_speculative_blocks", -1),
        "more blocks than columns": Fault(
            ("kv_cache_spec", "block_table"),
            lambda spec, table: (spec, table[:, : spec.num_speculative_blocks]),
            "block_table",
            applies=_taken_rows,
        ),
        "sequence beyond the table": Fault(
            "block_table",
            lambda table: table[:, :-1],
            applies=lambda case: _taken_rows(case) and not batch_of(case).spare_columns,
            cpu_only=True,
        ),
    },
    invariants=_invariants,
    is_new=_taken,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (mamba_get_block_table_tensor,)
