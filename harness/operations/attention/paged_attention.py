"""Operation of SPEC.md section 8: attention over pages for prefills, mixed batches and decodes.

Bug classes: the edges of the causal triangle and the window off by one, a window or soft
cap ignored (K24), a page read through another request's table or behind the sequence, heads
taken from the wrong group, products of 32 bits (K15), rows of padding and of no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.layers.attention import CACHES, MAGNITUDES, OUT
from attnproof.harness.cases.layers.shapes import MODELS
from attnproof.harness.cases.memory.paged_cache import LAYOUTS
from attnproof.harness.model.call import Call
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Inputs, Operation
from attnproof.harness.operations.attention import served
from attnproof.harness.operations.attention.contract import (
    consumed,
    for_reference,
    invariants,
    outputs,
    work,
)
from attnproof.harness.operations.attention.diagnosis import diagnose
from attnproof.harness.operations.attention.faults import PAGED_FAULTS
from attnproof.harness.operations.attention.prepared import (
    HEAD_SIZES,
    LAYER,
    AttentionParams,
    PreparedAttention,
    capped,
    layers,
    problem,
    shared_batch,
)

NAME = "paged_attention"


def _case(batch: Batch, **params: Any) -> Case:
    return Case(NAME, batch, LAYER | params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = capped(draw(batches(max_requests=2)), queries=12, computed=70)
    return Case(NAME, batch, draw(layers()))


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, order="descending")
    yield "mixed batch", _case(mixed, group=2)
    yield "no requests", _case(make_batch([], [], 16))
    yield "only padding", _case(make_batch([], [], 16, padded_requests=2, padded_tokens=3))
    yield "requests without queries", _case(make_batch([0, 0], [3, 0], 16, padded_tokens=2))
    yield "one token, one key", _case(make_batch([1], [0], 1))
    padded = make_batch([2, 1], [3, 6], 16, padded_requests=2, padded_tokens=3, query_slack=40)
    yield "padded rows and tokens, loose bounds", _case(padded, group=4)
    yield "more queries than keys", _case(mixed, missing=[2, 3, 0, 12])
    yield "queries of requests without keys", _case(mixed, missing=[8, 5], window=2, soft_cap=5)
    yield "spec decode", _case(make_batch([3, 2, 3], [17, 15, 30], 16, order="shuffled"), group=4)
    yield (
        "strided int64",
        _case(make_batch([4, 3], [1, 6], 4, strided=True, dtype="int64"), gap=8),
    )
    yield "shared prefix blocks", _case(make_batch([2, 2], [8, 8], 4, shared=True))
    filled = replace(make_batch([8, 1, 2], [0, 8, 8], 4), blocks=((5, 2), (5, 2, 7), (5, 2, 0)))
    yield "prefix that a prefill of the same step fills", _case(filled)
    yield from _edges()
    yield from _layers()
    yield from _long()


def _edges() -> Iterator[tuple[str, Case]]:
    """Yield windows, pages and tiles that end at the same token or one token apart."""
    chunk = make_batch([8], [62], 16, order="shuffled")
    for window in (1, 2, 16, 31, 32, 33, 69, 70, 1000):
        yield f"window of {window} (K24)", _case(chunk, window=window, group=3)
    for computed in (30, 31, 32, 64):
        yield f"decode behind {computed} keys", _case(make_batch([1], [computed], 16), group=4)
    for queries in (16, 17, 33):
        yield (
            f"prefill of {queries}, then a decode",
            _case(make_batch([queries, 1], [0, 5], 16), group=4),
        )
    for size in (1, 3, 32, 64, 256, 2049):
        ends = make_batch([2, 1], [min(size, 70) - 1, min(size, 70)], size, order="descending")
        yield f"page size {size}", _case(ends, window=5, group=2)
    yield (
        "tile of queries that ends within a token's heads",
        _case(make_batch([7], [3], 16), group=5),
    )
    yield "two kv heads", _case(make_batch([2], [9], 16), group=2, num_kv_heads=2)
    yield "group larger than a tile of queries", _case(make_batch([2, 1], [3, 40], 16), group=71)


def _layers() -> Iterator[tuple[str, Case]]:
    batch = make_batch([5], [30], 16, order="shuffled", spare_columns=1)
    for head_size in HEAD_SIZES:
        yield f"head size {head_size}", _case(batch, head_size=head_size, group=2)
    for layout, name in enumerate(LAYOUTS):
        yield name, _case(batch, layout=layout, group=2, num_kv_heads=2, head_size=8, gap=3)
    for magnitude in MAGNITUDES:
        for dtype in ("float16", "bfloat16"):
            numbers = {"magnitude": magnitude, "dtype": dtype}
            yield f"{magnitude} numbers, {dtype}", _case(batch, **numbers, seed=1)
    scaled = {"k_scale": 0.3, "v_scale": 0.07, "group": 2}
    for cache in CACHES[1:]:
        yield f"{cache} cache", _case(batch, cache=cache, **scaled)
        yield (
            f"{cache} cache, bfloat16, window and soft cap",
            _case(batch, cache=cache, **scaled, dtype="bfloat16", window=17, soft_cap=2),
        )
    for cap in (1, 30, 1000):
        yield f"soft cap {cap} (K24)", _case(batch, soft_cap=cap, scale=1.0)
        yield f"soft cap {cap}, scores of all sizes", _case(batch, soft_cap=cap, magnitude="large")
    yield "negative scale", _case(batch, scale=-0.5)
    for out in ("float32", "float64"):
        yield f"result in {out}", _case(batch, out=out, gap=8, group=4)
    for model in MODELS:
        layer = model.layer | {"num_kv_heads": 1}
        scaled_down = {"window": -(-model.window // 64), "soft_cap": model.soft_cap}
        yield f"{model.name}, scaled down", _case(make_batch([2], [30], 16), **layer, **scaled_down)
    yield "offsets beyond 2**31 elements (K15)", _case(batch, far=True, head_size=33)
    yield (
        "offsets beyond 2**31 elements, fp8 (K15)",
        _case(batch, far=True, cache="fp8", head_size=64),
    )


def _long() -> Iterator[tuple[str, Case]]:
    """Yield long sequences, whose keys a kernel divides into parts, beside short ones."""
    for lengths in ([600, 5], [511], [512, 0, 129]):
        long = make_batch([1] * len(lengths), lengths, 16, order="shuffled")
        yield f"long decodes behind {lengths}", _case(long, group=2)
    very_long = make_batch([2], [2998], 128, order="shuffled")
    for magnitude in ("normal", "rising", "falling", "lowest"):
        numbers = {"head_size": 8, "magnitude": magnitude}
        yield f"3000 keys in several pieces, {magnitude}", _case(very_long, group=4, **numbers)
    yield "long decode with a window", _case(make_batch([1], [600], 16), window=300, soft_cap=20)
    padded = make_batch([2, 1], [400, 3], 16, padded_tokens=2, padded_requests=1)
    yield "long spec decode, padded", _case(padded, group=3, out="float32")
    yield (
        "long bounds, short decodes",
        _case(make_batch([1, 1], [3, 70], 16, seq_slack=5000), group=2),
    )


def _large() -> Iterator[tuple[str, Case]]:
    """Yield cases of real size."""
    # Requests share blocks, because generating separate sequences would take minutes.
    # The reference reads all keys of a request for each query: 16,384 of them took ten minutes.
    llama = MODELS[0].layer | {"dtype": "bfloat16"}
    sharded = MODELS[1].layer | {"dtype": "bfloat16"}
    yield "prefill of 2048", _case(shared_batch([2048], [0], 16), **llama)
    yield "prefill of 5000, one kv head", _case(shared_batch([5000], [0], 16), **sharded)
    chunked = shared_batch([1] * 16 + [140, 48], [500 + 411 * r for r in range(16)] + [7000, 0], 16)
    yield "decodes and chunked prefills", _case(chunked, **llama)
    yield (
        "the same with an fp8 cache",
        _case(chunked, **llama, cache="fp8", k_scale=0.3, v_scale=0.07),
    )
    spec = shared_batch([4] * 6, [8000 - 137 * r for r in range(6)], 16)
    yield "spec decode at 8k", _case(spec, **llama)
    for model in MODELS:
        if model.window or model.head_size != 128:
            batch = shared_batch([1, 1, 130], [5000, 3, 4100], 32)
            yield (
                model.name,
                _case(batch, **model.layer, window=model.window, soft_cap=model.soft_cap),
            )


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield the first request of an engine step, shortened."""
    small = capped(batch, queries=8, computed=60, requests=1)
    yield _case(small, group=2, window=(0, 33)[batch.num_tokens % 2])


def _timed_models() -> Iterator[tuple[str, Case]]:
    """Yield two decodes and the end of a prompt for each model."""
    batch = make_batch([1, 1, 8], [100, 200, 56], 16, order="shuffled")
    for model in MODELS:
        yield model.name, _case(batch, **model.layer, window=model.window, soft_cap=model.soft_cap)


def _served() -> Iterator[tuple[str, Case]]:
    for name, batch in served.mixed():
        yield name, _case(batch, **served.LAYER)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    prepared = PreparedAttention(case, pattern, device, one_each=False)
    return prepared.call(
        ("query_start_loc", "seq_lens", "block_table"), max_query_len=prepared.max_query_len
    )


paged_attention = Operation(
    name=NAME,
    section="8",
    summary="attention of a batch over the paged cache",
    inputs=Inputs(
        params=AttentionParams,
        whole_contexts=True,
        problem=problem,
        cases=_cases,
        boundaries=_boundaries,
        large=_large,
        from_batch=_from_batch,
        faults=PAGED_FAULTS,
    ),
    call=FunctionCall(prepare=_prepare, outputs=outputs),
    contract=Contract(
        invariants=invariants,
        consume=consumed,
        tolerant=frozenset({OUT}),
        for_reference=for_reference,
        diagnose=diagnose,
        may_alias=frozenset({OUT}),
    ),
    bench=Bench(cases=lambda _batch: (), models=_timed_models, served=_served, work=work),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (paged_attention,)
