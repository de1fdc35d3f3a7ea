"""Cases of `reshape_and_cache_flash`: drawn, at boundaries, large and timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.layers.cache_write import CACHES, CONTENTS, ROWS, only_written_blocks
from attnproof.harness.cases.layers.shapes import MODELS
from attnproof.harness.cases.memory.paged_cache import LAYOUTS
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.operations.attention import served
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import (
    Counts,
    Few,
    HeadSize,
    Layout,
    Params,
    Scale,
    Some,
    layer_problem,
)

NAME = "reshape_and_cache_flash"
PLAIN: dict[str, Any] = {
    "num_kv_heads": 1,
    "head_size": 4,
    "dtype": "float16",
    "cache": "auto",
    "k_scale": 1.0,
    "v_scale": 1.0,
    "layout": 0,
    "gap": 0,
    "content": 0,
    "seed": 0,
    "rows": 0,
    "spare_rows": 0,
    "strided": False,
    "unwritten": [],
    "apart": False,
    "shift": 0,
    "far": False,
}
_SCALE = st.sampled_from((1.0, 0.5, 0.3, 2.0, 0.0123, 448.0, 1e-6))
_TOKENS_OF_A_STEP = 96
"""Largest number of query tokens taken from an engine step."""
_TOKENS_TIMED = 300
"""Largest number of tokens in a timed batch: each token may need a block of 64 KiB."""


class CacheWriteParams(Params):
    """Parameters of a write to the cache."""

    num_kv_heads: Some
    head_size: HeadSize
    dtype: Literal["float16", "bfloat16"]
    """Dtype of keys and values."""
    cache: Literal["auto", "fp8", "uint8"]
    """Dtype of the cache: that of the keys, float8_e4m3fn, or its bits as uint8."""
    k_scale: Scale
    """Factor of the keys of an fp8 cache."""
    v_scale: Scale
    """Factor of the values of an fp8 cache."""
    layout: Layout
    """Memory layout of the cache: NHD, HND, blocks first, heads first."""
    gap: Few
    """Elements between two vectors of the cache."""
    content: Annotated[int, Meta(ge=0, le=len(CONTENTS) - 1)]
    """Content of keys and values: normal numbers, any bits, ties between fp8 codes."""
    seed: Count
    """Seed of the numbers."""
    rows: Annotated[int, Meta(ge=0, le=len(ROWS) - 1)]
    """Memory layout of the keys and values: dense, fused buffer, heads or elements apart."""
    spare_rows: Few
    """Rows of keys and values behind the slots."""
    strided: bool
    """True if the slots are not contiguous."""
    unwritten: Counts
    """Tokens with slot -1."""
    apart: bool
    """True if the caches of keys and values have memory and a layout of their own."""
    shift: Few
    """Elements by which keys and values are shifted, so that wide loads are not aligned."""
    far: bool
    """True if offsets in the cache are above 2**31 elements."""


def problem(case: Case) -> str:
    """Return why the cache cannot be made, "" if it can."""
    return layer_problem(only_written_blocks(batch_of(case)), case.params)


def case_of(batch: Batch, **params: Any) -> Case:
    """Return a case; `params` override `PLAIN`."""
    return Case(NAME, batch, PLAIN | params)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case."""
    batch = draw(batches(max_requests=3))
    return case_of(
        batch,
        num_kv_heads=draw(st.sampled_from((1, 2, 3))),
        head_size=draw(st.sampled_from((4, 1, 8, 5, 24))),
        dtype=draw(st.sampled_from(("float16", "bfloat16"))),
        cache=draw(st.sampled_from(CACHES)),
        k_scale=draw(_SCALE),
        v_scale=draw(_SCALE),
        layout=draw(st.integers(0, len(LAYOUTS) - 1)),
        gap=draw(st.sampled_from((0, 0, 3, 8))),
        content=draw(st.integers(0, len(CONTENTS) - 1)),
        seed=draw(st.integers(0, 999)),
        rows=draw(st.integers(0, len(ROWS) - 1)),
        spare_rows=draw(st.sampled_from((0, 0, 2))),
        strided=batch.strided,
        unwritten=draw(st.lists(st.integers(0, 40), max_size=3)),
        apart=draw(st.sampled_from((False, False, False, True))),
        shift=draw(st.sampled_from((0, 0, 0, 1, 2))),
    )


def boundaries() -> Iterator[tuple[str, Case]]:
    """Yield the boundaries: slots, layouts, contents, head sizes, tiles and far caches."""
    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, order="descending")
    yield "mixed batch", case_of(mixed)
    yield "no requests", case_of(make_batch([], [], 4))
    yield "no requests, rows for one token", case_of(make_batch([], [], 4), spare_rows=1)
    yield "only padded tokens", case_of(make_batch([], [], 4, padded_requests=2, padded_tokens=3))
    padded = make_batch([2, 3], [3, 6], 4, padded_requests=2, padded_tokens=3)
    yield "padded tokens behind the others (K16)", case_of(padded)
    yield "tokens without a slot between others (K16)", case_of(mixed, unwritten=[0, 4, 7])
    yield "more rows than slots", case_of(mixed, spare_rows=4)
    yield "strided slots", case_of(mixed, strided=True)
    yield from _last_slots()
    yield from _layouts(mixed)
    yield from _elements(mixed)
    for shift in (1, 2, 4):
        aside = {"shift": shift, "head_size": 8}
        yield f"memory that starts {shift} elements off", case_of(mixed, **aside)
        yield f"memory that starts {shift} elements off, fp8", case_of(mixed, **aside, cache="fp8")
    for head_size in (1, 2, 8, 40, 72, 96, 120, 128, 256):
        shape = {"head_size": head_size, "num_kv_heads": 2}
        yield f"head size {head_size}", case_of(make_batch([3, 1], [2, 5], 4), **shape)
        yield (
            f"head size {head_size}, heads first, fp8",
            case_of(make_batch([3, 1], [2, 5], 4), **shape, layout=1, cache="fp8", k_scale=0.3),
        )
    yield (
        "one token, as many words as a kernel tile",
        case_of(make_batch([1], [2], 1), head_size=4096),
    )
    yield (
        "one token, more words than a kernel tile",
        case_of(make_batch([1], [2], 1), head_size=4100),
    )
    yield (
        "more tokens than a kernel tile (K19)",
        case_of(make_batch([600, 1, 70], [5, 0, 31], 16, order="shuffled"), head_size=8),
    )
    yield (
        "more tokens than a kernel tile (K19), fp8",
        case_of(make_batch([600, 1, 70], [5, 0, 31], 16), head_size=8, cache="fp8", content=2),
    )
    yield from _far_cases()


def _last_slots() -> Iterator[tuple[str, Case]]:
    for size in (1, 3, 16, 256):
        # An odd highest block would leave the last slot of the cache without a request.
        ends = make_batch([2, 1], [size - 1, 2 * size - 1], size)
        yield f"ends of blocks of {size}", case_of(ends)
        yield f"ends of blocks of {size}, blocks first", case_of(ends, layout=2, unwritten=[1])


def _layouts(batch: Batch) -> Iterator[tuple[str, Case]]:
    shape = {"num_kv_heads": 3, "head_size": 8}
    for layout, name in enumerate(LAYOUTS):
        yield f"{name}", case_of(batch, layout=layout, **shape)
        yield f"{name} with others' memory between", case_of(batch, layout=layout, gap=3, **shape)
        yield f"{name}, fp8", case_of(batch, layout=layout, cache="uint8", v_scale=0.3, **shape)
        yield f"{name}, values elsewhere", case_of(batch, layout=layout, apart=True, **shape)
    for rows, name in enumerate(ROWS):
        yield f"rows {name}", case_of(batch, rows=rows, **shape)
        yield (
            f"rows {name}, bfloat16 to heads first",
            case_of(batch, rows=rows, layout=1, dtype="bfloat16", **shape),
        )
        yield f"rows {name}, fp8", case_of(batch, rows=rows, cache="fp8", k_scale=0.3, **shape)


def _elements(batch: Batch) -> Iterator[tuple[str, Case]]:
    for dtype in ("float16", "bfloat16"):
        yield f"{dtype}, any bits", case_of(batch, dtype=dtype, content=1, head_size=64)
        for cache in CACHES[1:]:
            common = {"dtype": dtype, "cache": cache, "head_size": 64}
            yield f"{dtype} to {cache}", case_of(batch, **common)
            yield f"{dtype} to {cache}, any bits", case_of(batch, **common, content=1)
            yield f"{dtype} to {cache}, ties", case_of(batch, **common, content=2)
            scaled = {**common, "k_scale": 0.3, "v_scale": 7.0}
            yield f"{dtype} to {cache}, scaled", case_of(batch, **scaled)
            yield f"{dtype} to {cache}, scaled any bits", case_of(batch, **scaled, content=1)
    everything = make_batch([64], [0], 16)
    for dtype in ("float16", "bfloat16"):
        yield (
            f"every {dtype} there is, to fp8",
            case_of(everything, dtype=dtype, cache="fp8", content=1, num_kv_heads=8, head_size=128),
        )
    tiny: dict[str, Any] = {"cache": "fp8", "content": 1, "head_size": 64}
    for dtype in ("float16", "bfloat16"):
        for name, scale in (("overflow", 1e-38), ("underflow", 1e38)):
            scales = {"k_scale": scale, "v_scale": scale**0.75, "dtype": dtype}
            yield f"scales that {name}, {dtype}", case_of(batch, **tiny, **scales)


def _far_cases() -> Iterator[tuple[str, Case]]:
    """Yield writes to both ends of a cache of more than 2**31 elements."""
    batch = make_batch([3, 5, 2], [2, 0, 9], 4, order="descending", padded_tokens=1)
    for cache in CACHES:
        name = f"element offsets beyond 2**31, {cache} (K15)"
        yield name, case_of(batch, far=True, cache=cache, num_kv_heads=2, head_size=64)
    slots = {"far": True, "head_size": 1}
    yield "slots beyond 2**31 (K15)", case_of(make_batch([3, 2], [1, 0], 1), **slots)
    yield "block ids near 2**30, one element each (K15)", case_of(batch, **slots, cache="fp8")


def large() -> Iterator[tuple[str, Case]]:
    """Yield a prefill and decodes of real size."""
    layer = {"num_kv_heads": 8, "head_size": 128, "rows": 1}
    prefill = make_batch([4096, 3000, 1], [0, 77, 8191], 16, order="shuffled", padded_tokens=33)
    decode = make_batch([1] * 256, [8000 + 7 * row for row in range(256)], 16, order="shuffled")
    for name, batch in (("prefill", prefill), ("decode", decode)):
        for cache in CACHES[:2]:
            yield f"{name}, {cache}", case_of(batch, **layer, dtype="bfloat16", cache=cache)
        yield f"{name}, heads first", case_of(batch, **layer, layout=1)


def from_batch(batch: Batch) -> Iterator[Case]:
    """Yield the first tokens of an engine step."""
    left, queries = _TOKENS_OF_A_STEP, []
    for query_len in batch.query_lens:
        queries.append(min(left, query_len))
        left -= queries[-1]
    counts = [
        -(-(q + c) // batch.block_size) for q, c in zip(queries, batch.computed_lens, strict=True)
    ]
    blocks = tuple(row[:count] for row, count in zip(batch.blocks, counts, strict=True))
    shorter = msgspec.structs.replace(batch, query_lens=tuple(queries), blocks=blocks)
    yield case_of(shorter, strided=batch.strided)


def timed(batch: Batch) -> Iterator[Case]:
    """Yield keys and values of Llama's shape if the batch's blocks fit into a small cache."""
    if batch.num_tokens <= _TOKENS_TIMED:
        yield case_of(batch, **MODELS[0].cache, rows=1)


def timed_models() -> Iterator[tuple[str, Case]]:
    """Yield 32 decodes for each model."""
    batch = make_batch([1] * 32, [500 + 37 * row for row in range(32)], 16, order="shuffled")
    for model in MODELS:
        yield model.name, case_of(batch, **model.cache, rows=1)


def served_cases() -> Iterator[tuple[str, Case]]:
    """Yield the writes of steps that one GPU serves."""
    layer = {"num_kv_heads": 8, "head_size": 128, "rows": 1}
    for name, batch in served.writes():
        yield name, case_of(batch, **layer, dtype="bfloat16")
