"""Operation of SPEC.md section 12: the block table of a kernel with smaller blocks.

Bug classes: padding that becomes a block, the stride of a packed cache taken for the number of
parts, products in 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in, one_of
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few, Some
from attnproof.reference import map_to_kernel_block_table as reference

_LAST_INT32 = 2**31 - 1


def _examples() -> Iterator[Example]:
    mixed = make_batch([1, 5, 2, 3], [7, 0, 30, 9], 8, spare_columns=2, order="descending")
    new, same = {"with_out": False}, {"with_out": False, "with_stride": False}
    for parts in (8, 4, 2, 1):
        yield f"kernel blocks of {8 // parts} tokens", mixed, {"parts": parts} | same
    yield "packed cache", mixed, {"parts": 2, "gap": 5} | new
    yield "packed cache whose blocks are kernel blocks", mixed, {"parts": 1, "gap": 2} | new
    yield "padding of -1", mixed, {"parts": 4, "padding": True} | same
    yield "padding of -1 in a packed cache", mixed, {"parts": 4, "padding": True, "gap": 5} | new
    stale = make_batch([1, 1], [0, 60], 8, spare_columns=3)
    yield "stale columns (K18)", stale, {"parts": 2} | same
    yield "a buffer", mixed, {"parts": 2, "spare": 3}
    padded = make_batch([1], [12], 8, padded_requests=3)
    yield "padded rows", padded, {"parts": 2, "padding": True}
    none = make_batch([], [], 8, spare_columns=3)
    yield "no requests in a table with columns", none, {"parts": 2, "spare": 2}
    for parts in (16, 2, 1):
        highest = make_batch([3, 20], [15, 0], 16, first=2**31 // parts - 6)
        name = f"highest kernel blocks of {16 // parts} tokens"
        yield name, highest, {"parts": parts} | same
    high_blocks = make_batch([3, 20], [15, 0], 16, first=HIGHEST_BLOCK - 6)
    yield "kernel blocks beyond int32 (K15)", high_blocks, {"parts": 16} | same
    yield "kernel blocks of a packed cache beyond int32", high_blocks, {"parts": 2, "gap": 98} | new
    for tokens in (1023, 1024, 1025):
        name = f"{tokens} kernel blocks, a tile has 1024"
        yield name, make_batch([tokens], [0], 16), {"parts": 16} | same
    many = make_batch([1] * 700, [20 + row % 25 for row in range(700)], 16)
    yield "more requests than a kernel tile", many, {"parts": 2} | same


def _parts(batch: Batch, params: dict[str, Any]) -> int:
    """Return the kernel blocks of a block."""
    return gcd(batch.block_size, params["parts"])


def _step(batch: Batch, params: dict[str, Any]) -> int:
    """Return the kernel blocks from one block to the next."""
    return _parts(batch, params) + (params["gap"] if params["with_stride"] else 0)


def _is_beyond_int32(batch: Batch, params: dict[str, Any]) -> bool:
    highest = max((block for row in batch.blocks for block in row), default=0) | 1
    return highest * _step(batch, params) + _parts(batch, params) - 1 > _LAST_INT32


def _table(values: Values) -> np.ndarray:
    """Return the batch's table, of int64 where the ids of kernel blocks need it."""
    batch, params = values.batch.batch, values.params
    table = values.batch.block_table_with(-1 if params["padding"] else values.stale)
    wide = batch.dtype in ("int64", "int64 table") or _is_beyond_int32(batch, params)
    return table.astype(np.int64 if wide else np.int32)


def _free(call: Call) -> np.ndarray:
    """Return (R, W * parts), True for what stale entries become."""
    batch, params = call.facts.batch, call.facts.params
    stale = batch_arrays(batch).stale_blocks
    free = np.zeros_like(stale) if params["padding"] else stale
    return np.repeat(free, _parts(batch, params), axis=1)


def _outputs(call: Call, result: Any) -> Outputs:
    """Return result and buffer, with 0 in place of what stale entries became."""
    free = torch.from_numpy(_free(call))
    outputs = {"result": result} | {name: call[name] for name in call.written}
    for name, tensor in outputs.items():
        if isinstance(tensor, torch.Tensor) and tensor.ndim == 2:
            cleared = outputs[name] = tensor.clone()
            rows, columns = tensor.shape
            cleared[: free.shape[0], : free.shape[1]][free[:rows, :columns].to(tensor.device)] = 0
    where = call["block_table"] if call["out"] is None else call["out"]
    call.observed["in place"] = isinstance(result, torch.Tensor) and (
        result.data_ptr() == where.data_ptr() or not result.numel()
    )
    return outputs


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that the result is where it must be, and holds no padding as a block."""
    batch, params = call.facts.batch, call.facts.params
    identity = call["out"] is None and _step(batch, params) == 1
    if not call.observed.get("in place", True) and (identity or call["out"] is not None):
        place = "the table itself" if identity else "a view of the buffer that was given"
        yield Violation("result", f"is not {place}")
    padded = batch_arrays(batch).stale_blocks.repeat(_parts(batch, params), axis=1)
    result = int64_array(outputs["result"])
    if params["padding"] and result.shape == padded.shape and (result[padded] != -1).any():
        yield Violation("result", "gives padding a block")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each position of a request is read at the same place through either table.

    A place is a token in memory where block b begins at kernel block `b * step`.
    """
    batch, kernel = call.facts.batch, call["kernel_block_size"]
    arrays, size = batch_arrays(batch), batch.block_size
    lengths = arrays.seq_lens.astype(np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    block = arrays.block_table.astype(np.int64)[rows, positions // size]
    right = block * _step(batch, call.facts.params) * kernel + positions % size
    table = int64_array(outputs["result"])
    if table.shape[0] != len(lengths) or table.shape[1] * kernel < lengths.max(initial=0):
        yield Violation("result", "has no kernel block for a position")
        return
    read = table[rows, positions // kernel] * kernel + positions % kernel
    for at in np.flatnonzero(read != right)[:1]:
        detail = (
            f"position {positions[at]} of request {rows[at]} is in block {block[at]}, at token "
            f"{right[at]} of the cache, and read at token {read[at]}"
        )
        yield Violation("result", "reads a position from another place", detail)


def _diagnose(_call: Call, _place: Place, expected: Any, got: Any) -> str:
    """Return the diagnosis of padding that is wrong everywhere, "" for other mistakes."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong = expected != got
    only_padding = bool(wrong.any()) and bool((expected[wrong] == -1).all())
    return "padding becomes a block" if only_padding else ""


def _has_buffer(case: Case) -> bool:
    return case.num_requests > 0 and bool(case.params["with_out"])


def _unreal(case: Case) -> str:
    wide = _is_beyond_int32(batch_of(case), case.params)
    return "block ids of an engine are int32" if wide else ""


map_to_kernel_block_table = derive_built_in(
    reference,
    section="12",
    summary="the block table of a kernel with smaller blocks",
    values={
        "block_table": _table,
        "kernel_block_size": lambda values: (
            values["block_size"] // _parts(values.batch.batch, values.params)
        ),
        "stride": lambda values: _step(values.batch.batch, values.params),
        "N": lambda values: values.batch.num_reqs + values.params["spare"],
        "M": lambda values: (
            values.sizes["W"] * _parts(values.batch.batch, values.params) + values.params["spare"]
        ),
    },
    parameters={
        "parts": one_of(Some, 2, 1, 3, 4, 8, 16, 256),
        "gap": one_of(Few, 0, 1, 2, 5, 98),
        "padding": one_of(bool, False, True),
        "spare": one_of(Few, 0, 1, 2),
    },
    examples=_examples,
    unreal=_unreal,
    faults={
        "kernel block size that does not divide": Fault(
            "kernel_block_size", lambda _, size: size + 1, reads=("block_size",)
        ),
        "stride below the kernel blocks of a block": Fault(
            ("block_size", "kernel_block_size", "stride"),
            lambda size, *_: (2 * size, size, 1),
            "stride",
        ),
        "buffer of too few columns": Fault(
            "out",
            lambda out, table: out[:, : table.shape[1] - 1],
            applies=_has_buffer,
            reads=("block_table",),
        ),
        "buffer of too few rows": Fault("out", lambda out: out[:0], applies=_has_buffer),
    },
    outputs=_outputs,
    invariants=_invariants,
    consume=_consumed,
    diagnose=_diagnose,
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (map_to_kernel_block_table,)
