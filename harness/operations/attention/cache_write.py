"""Operation of SPEC.md section 8: new keys and values are written to the cache.

Bug classes: slot -1 taken for the last slot (K16), offsets of 32 bits (K15), a kernel's
tile that repeats the first one (K19), keys for values, strides of another layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.layers.cache_write import (
    CACHE,
    CACHES,
    CONTENTS,
    ROWS,
    SECOND_CACHE,
    CacheWrite,
)
from attnproof.harness.cases.layers.shapes import MODELS
from attnproof.harness.cases.memory.paged_cache import LAYOUTS
from attnproof.harness.consumer.attention import read_back, read_back_violations
from attnproof.harness.consumer.batch import expected_tokens_uncached
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.attention.cache_write_diagnosis import diagnose_cache_write
from attnproof.harness.operations.attention.cache_write_faults import FAULTS
from attnproof.harness.operations.shared.metadata import batch_of

NAME = "reshape_and_cache_flash"
KEY_CACHE, VALUE_CACHE = HALVES = ("key_cache", "value_cache")
_PLAIN: dict[str, Any] = {
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
_TOKENS_TIMED = 300
"""Most tokens of a timed batch. Each may need a block of its own, of 64 KiB."""


@dataclass(frozen=True, kw_only=True)
class _CacheWriteFacts(Facts):
    write: CacheWrite


def _case(batch: Batch, **params: Any) -> Case:
    return Case(NAME, batch, _PLAIN | params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(max_requests=3))
    return _case(
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


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, order="descending")
    yield "mixed batch", _case(mixed)
    yield "no requests", _case(make_batch([], [], 4))
    yield "no requests, rows for one token", _case(make_batch([], [], 4), spare_rows=1)
    yield "only padded tokens", _case(make_batch([], [], 4, padded_requests=2, padded_tokens=3))
    padded = make_batch([2, 3], [3, 6], 4, padded_requests=2, padded_tokens=3)
    yield "padded tokens behind the others (K16)", _case(padded)
    yield "tokens without a slot between others (K16)", _case(mixed, unwritten=[0, 4, 7])
    yield "more rows than slots", _case(mixed, spare_rows=4)
    yield "strided slots", _case(mixed, strided=True)
    yield from _last_slots()
    yield from _layouts(mixed)
    yield from _elements(mixed)
    for shift in (1, 2, 4):
        aside = {"shift": shift, "head_size": 8}
        yield f"memory that starts {shift} elements off", _case(mixed, **aside)
        yield f"memory that starts {shift} elements off, fp8", _case(mixed, **aside, cache="fp8")
    for head_size in (1, 2, 8, 40, 72, 96, 120, 128, 256):
        shape = {"head_size": head_size, "num_kv_heads": 2}
        yield f"head size {head_size}", _case(make_batch([3, 1], [2, 5], 4), **shape)
        yield (
            f"head size {head_size}, heads first, fp8",
            _case(make_batch([3, 1], [2, 5], 4), **shape, layout=1, cache="fp8", k_scale=0.3),
        )
    yield (
        "one token, as many words as a kernel tile",
        _case(make_batch([1], [2], 1), head_size=4096),
    )
    yield "one token, more words than a kernel tile", _case(make_batch([1], [2], 1), head_size=4100)
    yield (
        "more tokens than a kernel tile (K19)",
        _case(make_batch([600, 1, 70], [5, 0, 31], 16, order="shuffled"), head_size=8),
    )
    yield (
        "more tokens than a kernel tile (K19), fp8",
        _case(make_batch([600, 1, 70], [5, 0, 31], 16), head_size=8, cache="fp8", content=2),
    )
    yield from _far()


def _last_slots() -> Iterator[tuple[str, Case]]:
    for size in (1, 3, 16, 256):
        # An odd highest block would leave the last slot of the cache without a request.
        ends = make_batch([2, 1], [size - 1, 2 * size - 1], size)
        yield f"ends of blocks of {size}", _case(ends)
        yield f"ends of blocks of {size}, blocks first", _case(ends, layout=2, unwritten=[1])


def _layouts(batch: Batch) -> Iterator[tuple[str, Case]]:
    shape = {"num_kv_heads": 3, "head_size": 8}
    for layout, name in enumerate(LAYOUTS):
        yield f"{name}", _case(batch, layout=layout, **shape)
        yield f"{name} with others' memory between", _case(batch, layout=layout, gap=3, **shape)
        yield f"{name}, fp8", _case(batch, layout=layout, cache="uint8", v_scale=0.3, **shape)
        yield f"{name}, values elsewhere", _case(batch, layout=layout, apart=True, **shape)
    for rows, name in enumerate(ROWS):
        yield f"rows {name}", _case(batch, rows=rows, **shape)
        yield (
            f"rows {name}, bfloat16 to heads first",
            _case(batch, rows=rows, layout=1, dtype="bfloat16", **shape),
        )
        yield f"rows {name}, fp8", _case(batch, rows=rows, cache="fp8", k_scale=0.3, **shape)


def _elements(batch: Batch) -> Iterator[tuple[str, Case]]:
    for dtype in ("float16", "bfloat16"):
        yield f"{dtype}, any bits", _case(batch, dtype=dtype, content=1, head_size=64)
        for cache in CACHES[1:]:
            common = {"dtype": dtype, "cache": cache, "head_size": 64}
            yield f"{dtype} to {cache}", _case(batch, **common)
            yield f"{dtype} to {cache}, any bits", _case(batch, **common, content=1)
            yield f"{dtype} to {cache}, ties", _case(batch, **common, content=2)
            scaled = {**common, "k_scale": 0.3, "v_scale": 7.0}
            yield f"{dtype} to {cache}, scaled", _case(batch, **scaled)
            yield f"{dtype} to {cache}, scaled any bits", _case(batch, **scaled, content=1)
    everything = make_batch([64], [0], 16)
    for dtype in ("float16", "bfloat16"):
        yield (
            f"every {dtype} there is, to fp8",
            _case(everything, dtype=dtype, cache="fp8", content=1, num_kv_heads=8, head_size=128),
        )
    tiny: dict[str, Any] = {"cache": "fp8", "content": 1, "head_size": 64}
    for dtype in ("float16", "bfloat16"):
        for name, scale in (("overflow", 1e-38), ("underflow", 1e38)):
            scales = {"k_scale": scale, "v_scale": scale**0.75, "dtype": dtype}
            yield f"scales that {name}, {dtype}", _case(batch, **tiny, **scales)


def _far() -> Iterator[tuple[str, Case]]:
    """Yield writes to both ends of a cache of more than 2**31 elements."""
    batch = make_batch([3, 5, 2], [2, 0, 9], 4, order="descending", padded_tokens=1)
    for cache in CACHES:
        name = f"element offsets beyond 2**31, {cache} (K15)"
        yield name, _case(batch, far=True, cache=cache, num_kv_heads=2, head_size=64)
    slots = {"far": True, "head_size": 1}
    yield "slots beyond 2**31 (K15)", _case(make_batch([3, 2], [1, 0], 1), **slots)
    yield "block ids near 2**30, one element each (K15)", _case(batch, **slots, cache="fp8")


def _large() -> Iterator[tuple[str, Case]]:
    layer = {"num_kv_heads": 8, "head_size": 128, "rows": 1}
    prefill = make_batch([4096, 3000, 1], [0, 77, 8191], 16, order="shuffled", padded_tokens=33)
    decode = make_batch([1] * 256, [8000 + 7 * row for row in range(256)], 16, order="shuffled")
    for name, batch in (("prefill", prefill), ("decode", decode)):
        for cache in CACHES[:2]:
            yield f"{name}, {cache}", _case(batch, **layer, dtype="bfloat16", cache=cache)
        yield f"{name}, heads first", _case(batch, **layer, layout=1)


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield the first tokens of an engine step."""
    left, queries = _TOKENS_OF_A_STEP, []
    for query_len in batch.query_lens:
        queries.append(min(left, query_len))
        left -= queries[-1]
    yield _case(msgspec.structs.replace(batch, query_lens=tuple(queries)), strided=batch.strided)


def _timed(batch: Batch) -> Iterator[Case]:
    """Yield keys and values of Llama's shape if the batch's blocks fit into a small cache."""
    if batch.num_tokens <= _TOKENS_TIMED:
        yield _case(batch, **MODELS[0].cache, rows=1)


def _timed_models() -> Iterator[tuple[str, Case]]:
    batch = make_batch([1] * 32, [500 + 37 * row for row in range(32)], 16, order="shuffled")
    for model in MODELS:
        yield model.name, _case(batch, **model.cache, rows=1)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    made = CacheWrite(batch_of(case), case.params, pattern, device)
    return Call(
        made.args,
        arena=made.arena,
        written=frozenset({CACHE, SECOND_CACHE}),
        facts=_CacheWriteFacts(write=made, block_size=batch_of(case).block_size),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    words = call.facts.write.words()
    return {"result": result, KEY_CACHE: words[0], VALUE_CACHE: words[1]}


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Read every token back by its slot, and check that all other slots are unchanged."""
    made: CacheWrite = call.facts.write
    live = np.flatnonzero(made.slots >= 0)
    slots = made.slots[live]
    for half, name in enumerate(HALVES):
        size = made.before[half].shape[2:]
        now = outputs[name].cpu().numpy().reshape(-1, *size)
        before = made.before[half].reshape(-1, *size)
        given = made.given[half][live]
        if made.quantised:
            wrong = ~_is_nearest(now[slots], given, made, half)
        else:
            wrong = now[slots] != given
        if wrong.any():
            yield Violation(name, "does not hold the key or value of a token at its slot")
        others = np.setdiff1d(np.arange(len(now)), slots)
        if (now[others] != before[others]).any():
            yield Violation(name, "changed in a slot that no token has")
    if outputs["result"] is not None:
        yield Violation("result", "returns something")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Read every token that has a slot back through its request's block table."""
    made: CacheWrite = call.facts.write
    expected = expected_tokens_uncached(made.batch)
    tokens = np.flatnonzero(made.slots[: len(expected.requests)] >= 0)
    for half, name in enumerate(HALVES):
        found, given = read_back(expected, outputs[name], tokens), made.given[half][tokens]
        same = _is_nearest(found, given, made, half) if made.quantised else found == given
        yield from read_back_violations(expected, same, tokens, name)


_CODE = np.arange(0x7F)
_EXPONENT = np.maximum(_CODE >> 3, 1)
_MAGNITUDES = ((_CODE & 7) + 8 * (_CODE >= 8)) * 2.0 ** (_EXPONENT - 10.0)
"""Values of the codes 0 to 0x7E: three bits of mantissa, bias 7, subnormals below 8."""
_MIDDLES = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2


def _is_nearest(codes: np.ndarray, bits: np.ndarray, made: CacheWrite, half: int) -> np.ndarray:
    """Return True for each code that is nearest to its number divided by the scale, by search."""
    numbers = torch.from_numpy(np.ascontiguousarray(bits)).view(made.dtype).float().numpy()
    with np.errstate(all="ignore"):
        scaled = numbers / np.float32(made.scales[half])
    nan = np.isnan(scaled)
    magnitude = np.where(nan, 0, np.abs(scaled)).astype(np.float64)
    below = np.searchsorted(_MIDDLES, magnitude, side="left")
    above = np.searchsorted(_MIDDLES, magnitude, side="right")
    nearest = np.where(below % 2, above, below)  # a tie is between two codes: take the even one
    nearest = nearest + 0x80 * np.signbit(scaled)
    right: np.ndarray = np.where(nan, codes & 0x7F == 0x7F, codes == nearest)
    return right


reshape_and_cache_flash = Operation(
    name=NAME,
    section="8",
    summary="keys and values of new tokens written to the paged cache",
    inputs=Inputs(
        cases=_cases,
        boundaries=_boundaries,
        large=_large,
        from_batch=_from_batch,
        faults=FAULTS,
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        diagnose=diagnose_cache_write,
        may_alias=frozenset(HALVES),
    ),
    bench=Bench(cases=_timed, models=_timed_models),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (reshape_and_cache_flash,)
