"""Operation of SPEC.md section 22: cache rows of the keys that sparse attention selects.

Bug classes: a row for "no key" (K62), a block of another request, a stride between blocks taken
for their size, a position of another rank that gets a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.visible_keys import ExpectedTokens
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few, Some
from attnproof.reference import convert_req_index_to_global_index as reference


def _examples() -> Iterator[Example]:
    mixed = make_batch([3, 1, 0, 2], [5, 30, 4, 0], 4, order="descending")
    one = make_batch([1], [600], 16)
    for selected in (1, 33, 511, 512, 513):
        yield f"{selected} selected keys", one, {"selected": selected}
    yield "blocks apart", mixed, {"gap": 3}
    yield "positions beyond the table", mixed, {"beyond": True}
    for rank in range(3):
        ranks = {"dcp_size": 3, "dcp_rank": rank, "interleave": 2}
        yield f"rank {rank} of 3", mixed, ranks


def _steps(batch: Batch) -> Iterator[Step]:
    yield batch, {"selected": 1 + batch.num_tokens % 64}


def _selected(values: Values) -> np.ndarray:
    """Return positions of each query, newest first, at another first place in each row."""
    tokens, count = ExpectedTokens(values.batch), values.params["selected"]
    back = np.arange(count) * values.params["newest"]
    positions = tokens.positions[:, None] - back
    if values.params["beyond"]:
        end = values.batch.block_table.shape[1] * values.block_size * values["dcp_size"]
        positions[:, 1::3] += np.where(positions < 0, 0, end)[:, 1::3]
    positions = np.where(positions < 0, -1 - values.params["none"], positions)
    turned = np.arange(count) + np.arange(len(positions))[:, None]
    return np.take_along_axis(positions, turned % max(1, count), 1).astype(np.int32)


def _stride(values: Values) -> int:
    """Return the rows between two blocks; the last one's fit into int32."""
    most = 2**31 // (_highest(values.batch.batch) + 1)
    return int(max(values.block_size, min(values.block_size + values.params["gap"], most)))


def _highest(batch: Batch) -> int:
    return max((block for row in batch.blocks for block in row), default=0)


def _problem(case: Case) -> str:
    batch = batch_of(case)
    if batch.dtype != "int32":
        return "dtype: int32 is expected"
    wide = (_highest(batch) + 1) * batch.block_size > 2**31
    return "blocks: rows beyond int32" if wide else ""


def _unreal(case: Case) -> str:
    turns = case.params["dcp_size"] * math.gcd(case.params["interleave"], batch_of(case).block_size)
    return "" if turns < 2**31 else "the turns of an engine's ranks are shorter than a sequence"


def _rows(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compute block and offset of each row back, and check who has none."""
    tokens, stride = expected_tokens(call.facts.batch), call["block_stride_rows"]
    size, interleave = call["dcp_size"], call["cp_kv_cache_interleave_size"]
    positions, rows = int64_array(call["token_indices"]), int64_array(outputs["result"])
    local = positions // (size * interleave) * interleave + positions % interleave
    column, width = local // tokens.block_size, call["block_table"].shape[1]
    owned = (positions >= 0) & (positions // interleave % size == call["dcp_rank"])
    held = owned & (column < width)
    if (rows != -1)[~held].any():
        yield Violation("result", "is a row where the rank has no key")
    blocks = int64_array(call["block_table"])[tokens.requests[:, None], column % max(1, width)]
    if (rows // stride != blocks)[held].any():
        yield Violation("result", "is a row of another block")
    elif (rows % stride != local % tokens.block_size)[held].any():
        yield Violation("result", "is another row of the block")


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    rows, right = int64_array(got), int64_array(expected)
    if rows.shape != right.shape:
        return ""
    if (rows != -1)[right == -1].any():
        return "a row for no key"
    if (rows == -1)[right != -1].any():
        return "no row for a key of the rank"
    stride = call["block_stride_rows"]
    return "a row of another block" if (rows // stride != right // stride).any() else ""


convert_req_index_to_global_index = derive_built_in(
    reference,
    section="22",
    summary="the cache rows of the keys that sparse attention selects",
    values={
        "token_indices": _selected,
        "block_stride_rows": _stride,
        "cp_kv_cache_interleave_size": lambda values: math.gcd(
            values.params["interleave"], values.block_size
        ),
        "K": lambda values: values.params["selected"],
    },
    parameters={
        "selected": one_of(Few, 8, 0, 1, 40, means="keys that each query selects"),
        "newest": one_of(Some, 1, 3, 7, means="positions from a selected key to the next"),
        "none": one_of(Few, 0, 4, means="-1 less the entry of no key"),
        "gap": one_of(Few, 0, 16, 3, means="rows between two blocks"),
        "beyond": one_of(bool, False, True, means="True if keys lie beyond the table"),
        "interleave": one_of(Some, 1, 2, 4, 16, means="positions that a rank owns in turn"),
    },
    examples=_examples,
    steps=_steps,
    problem=_problem,
    unreal=_unreal,
    invariants=_rows,
    diagnose=_diagnose,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (convert_req_index_to_global_index,)
