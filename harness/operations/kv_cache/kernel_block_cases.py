"""Cases of `map_to_kernel_block_table`: batches, sizes of kernel blocks, and their edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few, Params, Positive, size_problem

NAME = "map_to_kernel_block_table"
_LAST_INT32 = 2**31 - 1
_FLAGS = ("wide", "padding", "buffers")


class KernelParams(Params):
    """Parameters of a case, beside its batch."""

    kernel: Positive
    """Tokens per kernel block."""
    stride: Positive | None = None
    cut: Count = 0
    """Rows of the first micro-batch, at most all."""
    spare: Few = 0
    """Rows and columns of the buffers beyond the result."""
    wide: bool = False
    """True if the table is int64."""
    padding: bool = False
    """True if places behind a request's blocks hold -1, otherwise they are stale."""
    buffers: bool = False
    """True if each micro-batch has a buffer of its own, `out`."""


def sizes_of(case: Case) -> tuple[int, int]:
    """Return the kernel blocks of a block, and those from one block to the next."""
    parts = batch_of(case).block_size // case.params["kernel"]
    return parts, case.params.get("stride") or parts


def problem(case: Case) -> str:
    """Return why the case cannot be run, "" if it can: sizes, or ids beyond the dtype."""

    batch, kernel = batch_of(case), case.params["kernel"]
    if batch.block_size % kernel:
        return f"kernel: {kernel}, no divisor of {batch.block_size}"
    parts, step = sizes_of(case)
    if step < parts:
        return f"stride: {step}, below the {parts} kernel blocks of a block"
    highest = max((block for row in batch.blocks for block in row), default=0) | 1
    if not case.params.get("wide") and highest * step + parts - 1 > _LAST_INT32:
        return "batch.blocks: kernel blocks beyond int32"
    width = max(map(len, batch.blocks), default=0) + batch.spare_columns + 1
    rows = batch.num_requests + batch.padded_requests + case.params.get("spare", 0)
    elements = rows * (width * parts + case.params.get("spare", 0))
    return size_problem("kernel", 2 * elements * (2 if batch.strided else 1))


def unreal(case: Case) -> str:
    """Return why no engine makes the case, "" if one may."""

    return "block ids of an engine are int32" if case.params.get("wide") else ""


def _case(batch: Batch, kernel: int, **more: Any) -> Case:
    return Case(NAME, batch, {"kernel": kernel} | more)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a batch, a kernel block size, and a stride at or above the blocks of a block."""

    batch = draw(batches(max_requests=4))
    sizes = [d for d in (1, 2, 3, 4, 8, 16, batch.block_size) if batch.block_size % d == 0]
    kernel = draw(st.sampled_from(sorted(sizes, reverse=True)))
    more: dict[str, Any] = {name: draw(st.booleans()) for name in _FLAGS}
    parts = batch.block_size // kernel
    if draw(st.booleans()):
        more["stride"] = parts + draw(st.integers(0, 5))
    highest = max((block for row in batch.blocks for block in row), default=0) | 1
    if highest * more.get("stride", parts) + parts - 1 > _LAST_INT32:
        more["wide"] = True
    rows = batch.num_requests + batch.padded_requests
    return _case(batch, kernel, cut=draw(st.integers(0, rows)), spare=draw(_SPARE), **more)


_SPARE = st.integers(0, 2)


def boundaries() -> Iterator[tuple[str, Case]]:
    """Yield the named cases."""

    mixed = make_batch([1, 5, 2, 3], [7, 0, 30, 9], 8, spare_columns=2, order="descending")
    for kernel in (1, 2, 4, 8):
        yield f"kernel blocks of {kernel} tokens", _case(mixed, kernel, cut=2)
    yield "identity into a buffer", _case(mixed, 8, buffers=True, cut=2, spare=1)
    yield "packed cache", _case(mixed, 4, stride=7, cut=1)
    yield "packed cache whose blocks are kernel blocks", _case(mixed, 8, stride=3, cut=1)
    yield "padding of -1", _case(mixed, 2, padding=True, cut=2)
    yield "padding of -1 in a packed cache", _case(mixed, 2, padding=True, stride=9, cut=2)
    yield "stale columns (K18)", _case(make_batch([1, 1], [0, 60], 8, spare_columns=3), 4)
    yield "buffers of two micro-batches", _case(mixed, 4, buffers=True, cut=2, spare=3)
    padded = make_batch([1], [12], 8, padded_requests=3)
    yield "padded rows", _case(padded, 4, buffers=True, padding=True, cut=2)
    yield "no requests", _case(make_batch([], [], 8), 4, buffers=True, spare=2)
    yield "no rows in the first micro-batch", _case(mixed, 4)
    for kernel in (1, 8, 16):
        parts = 16 // kernel
        highest = make_batch([3, 20], [15, 0], 16, first=2**31 // parts - 6)
        yield f"highest kernel blocks of {kernel} tokens", _case(highest, kernel, cut=1)
    far = make_batch([3, 20], [15, 0], 16, first=HIGHEST_BLOCK - 6)
    yield "kernel blocks beyond int32 (K15)", _case(far, 1, wide=True, cut=1)
    yield "kernel blocks of a packed cache beyond int32", _case(far, 8, wide=True, stride=100)
    strided = make_batch([4, 3], [1, 6], 4, strided=True)
    yield "strided int64", _case(strided, 2, wide=True, cut=1, buffers=True, spare=1)
    for tokens in (1023, 1024, 1025):
        yield f"{tokens} kernel blocks, a tile has 1024", _case(make_batch([tokens], [0], 16), 1)
    many = make_batch([1] * 700, [20 + row % 25 for row in range(700)], 16)
    yield "more requests than a kernel tile", _case(many, 8, cut=300)


def steps(batch: Batch) -> Iterator[Case]:
    """Yield the case of an engine step, in two micro-batches."""

    rows = batch.num_requests + batch.padded_requests
    kernel = max(d for d in range(1, 17) if batch.block_size % d == 0)
    parts = batch.block_size // kernel
    highest = max((block for row in batch.blocks for block in row), default=0) | 1
    wide = highest * parts + parts > _LAST_INT32
    yield _case(batch, kernel, cut=rows // 2, buffers=True, wide=wide)
