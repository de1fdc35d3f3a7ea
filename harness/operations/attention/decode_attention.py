"""Operation of SPEC.md section 8: attention for one query a request.

Bug classes: a window or soft cap ignored where a library computes decodes (K24, erratum
E14), an fp8 cache passed to that library unconverted (E25), requests without a key, a
division of the keys into parts that omits some.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.layers.attention import CACHES, MAGNITUDES, OUT
from attnproof.harness.cases.layers.shapes import MODELS
from attnproof.harness.cases.layers.xformers_step import import_xformers
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
from attnproof.harness.operations.attention.faults import DECODE_FAULTS
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

NAME = "decode_attention"
_MASKED = LAYER | {"mask": True, "layout": 0}


class _Params(AttentionParams, kw_only=True):
    mask: bool


def _case(batch: Batch, **params: Any) -> Case:
    """Return a case in which every request has one query; padded rows have no key."""
    return Case(NAME, batch, _MASKED | params)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = capped(draw(batches(max_requests=2)), queries=12, computed=70)
    layer = draw(layers())
    if draw(st.booleans()):
        # Draw the layers that xformers supports half of the time: by chance they would be rare.
        kept = {"head_size": 32 * draw(st.sampled_from((1, 2))), "dtype": "float16", "gap": 0}
        layer |= kept | {"cache": "auto", "window": 0, "soft_cap": 0, "layout": 0, "out": ""}
    return Case(NAME, batch, layer | {"mask": draw(st.booleans())})


def _boundaries() -> Iterator[tuple[str, Case]]:
    decodes = make_batch([1, 1], [7, 40], 16, order="descending")
    for mask in (False, True):
        masked = {"mask": mask}
        with_ = "with the mask" if mask else "without a mask"
        yield f"decodes {with_}", _case(decodes, group=2, **masked)
        yield f"window of 1 {with_} (K24)", _case(decodes, window=1, **masked)
        yield f"window of 7 {with_} (K24)", _case(decodes, window=7, **masked)
        yield f"soft cap of 1 {with_} (K24)", _case(decodes, soft_cap=1, scale=1.0, **masked)
        yield f"window and soft cap {with_} (K24)", _case(decodes, window=17, soft_cap=2, **masked)
        yield f"scale of 1 {with_}", _case(decodes, scale=1.0, **masked)
        yield f"window that cuts no key {with_}", _case(decodes, window=41, **masked)
        yield f"window that cuts one key {with_} (K24)", _case(decodes, window=40, **masked)
        yield f"requests without keys {with_}", _case(decodes, missing=[8], **masked)
        yield f"no requests {with_}", _case(make_batch([], [], 16), **masked)
        fp8 = {"cache": "fp8", "k_scale": 0.3, "v_scale": 0.07, "dtype": "bfloat16"}
        yield f"fp8 cache {with_}", _case(decodes, **fp8, **masked)
    padded = make_batch([1, 1], [3, 6], 16, padded_requests=2)
    yield "padded rows", _case(padded, group=4)
    yield "only padded rows", _case(make_batch([], [], 16, padded_requests=2))
    yield "strided int64", _case(make_batch([1, 1], [1, 20], 16, strided=True, dtype="int64"))
    yield "loose bound", _case(make_batch([1, 1], [1, 20], 16, seq_slack=4000), group=3)
    yield from _layers(make_batch([1], [40], 16, order="descending"))
    yield from _long()


def _layers(batch: Batch) -> Iterator[tuple[str, Case]]:
    for head_size in HEAD_SIZES:
        yield f"head size {head_size}", _case(batch, head_size=head_size, group=2)
    for group in (3, 8, 17, 71):
        yield f"group of {group}", _case(batch, group=group, num_kv_heads=2 if group < 4 else 1)
    for layout, name in enumerate(LAYOUTS):
        yield name, _case(batch, layout=layout, group=2, num_kv_heads=2, gap=8)
    for size in (1, 8, 48, 128, 256):
        ends = make_batch([1, 1], [min(size, 70) - 1, min(size, 70)], size, order="descending")
        yield f"page size {size}", _case(ends, group=2)
    for dtype in ("float16", "bfloat16"):
        for magnitude in MAGNITUDES[1:]:
            numbers = {"dtype": dtype, "magnitude": magnitude}
            yield f"{magnitude} numbers, {dtype}", _case(batch, **numbers, seed=1)
    for cache_ in CACHES[1:]:
        scaled = {"cache": cache_, "k_scale": 0.3, "v_scale": 0.07}
        yield f"{cache_} cache, window", _case(batch, **scaled, window=9)
    yield "result in float32", _case(batch, out="float32", group=4)
    for model in MODELS:
        layer = model.layer | {"num_kv_heads": 1}
        scaled_down = {"window": -(-model.window // 64), "soft_cap": model.soft_cap}
        yield f"{model.name}, scaled down", _case(batch, **layer, **scaled_down)
    yield "offsets beyond 2**31 elements (K15)", _case(batch, far=True, head_size=33)


def _long() -> Iterator[tuple[str, Case]]:
    """Yield long sequences, whose keys a kernel divides into parts, beside short ones."""
    for lengths in ([700, 5], [511]):
        long = make_batch([1] * len(lengths), lengths, 32, order="shuffled")
        yield f"long sequences behind {lengths}", _case(long, group=2, mask=False)
    for magnitude in ("rising", "falling"):  # the maximum moves from part to part
        parts = make_batch([1], [1300], 64, order="shuffled")
        yield f"three long parts, {magnitude} scores", _case(parts, mask=False, magnitude=magnitude)
    many = make_batch([1], [8300], 256, order="shuffled")
    yield "keys in more than 32 parts of 256", _case(many, mask=False, head_size=8)
    long = make_batch([1, 1], [400, 3], 64, order="shuffled")
    yield "long sequences with the mask", _case(long, group=2)
    yield "long sequence, one request without keys", _case(long, missing=[0, 4], mask=False)
    yield "long sequence with a window", _case(long, window=300, soft_cap=20)


def _large() -> Iterator[tuple[str, Case]]:
    # The reference gathers all keys of a request in float64: a case is as large as it must be.
    llama = MODELS[0].layer | {"dtype": "bfloat16"}
    many = shared_batch([1] * 64, [8191] * 64, 16)
    even = shared_batch([1] * 8, [8191] * 8, 16)
    uneven = shared_batch([1] * 9, [1003 * row + 17 for row in range(9)], 16)
    yield "64 decodes at 8k without a mask", _case(many, **llama, mask=False)
    yield "8 decodes at 8k with the mask", _case(even, **llama)
    for mask in (False, True):
        with_ = "with the mask" if mask else "without a mask"
        yield f"uneven decodes {with_}", _case(uneven, **llama, mask=mask)
    single = shared_batch([1], [100_000], 16)
    yield "one decode at 100k", _case(single, **MODELS[1].layer, dtype="bfloat16", mask=False)
    yield "fp8 cache", _case(uneven, **llama, cache="fp8", k_scale=0.3, v_scale=0.07)
    for model in MODELS:
        if model.window or model.head_size != 128:
            bounds = {"window": model.window, "soft_cap": model.soft_cap}
            yield model.name, _case(uneven, **model.layer, **bounds)


def _from_batch(batch: Batch) -> Iterator[Case]:
    yield _case(
        capped(batch, queries=8, computed=60, requests=1), group=2, mask=batch.num_tokens % 2 == 1
    )


def _timed_models() -> Iterator[tuple[str, Case]]:
    """Yield four decodes for each model."""
    batch = make_batch([1] * 4, [60, 100, 150, 255], 16, order="shuffled")
    for model in MODELS:
        yield (
            model.name,
            _case(batch, **model.layer, window=model.window, soft_cap=model.soft_cap, mask=False),
        )


def _served() -> Iterator[tuple[str, Case]]:
    for name, batch in served.decodes():
        yield name, _case(batch, **served.LAYER, mask=False)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    prepared = PreparedAttention(case, pattern, device, one_each=True)
    mask = _mask(prepared) if case.params["mask"] else None
    return prepared.call(("seq_lens", "block_table"), attn_bias=mask)


@cache
def _mask_class() -> Any:
    """Return xformers' class of masks, None if xformers is not installed."""
    if find_spec("xformers") is None:
        return None
    from xformers.ops.fmha.attn_bias import PagedBlockDiagonalCausalWithOffsetPaddedKeysMask

    return PagedBlockDiagonalCausalWithOffsetPaddedKeysMask


def _mask(prepared: PreparedAttention) -> Any:
    mask_class = _mask_class()
    table = prepared.arena.tensors["block_table"]
    seq_lens = [
        q + c for q, c in zip(prepared.batch.query_lens, prepared.batch.computed_lens, strict=True)
    ]
    if mask_class is None or not seq_lens:
        return None
    return mask_class.from_seqlens(
        q_seqlen=[1] * len(seq_lens),
        kv_seqlen=seq_lens,
        page_size=prepared.batch.block_size,
        block_tables=table,
        device=torch.device(prepared.device),
    )


decode_attention = Operation(
    name=NAME,
    section="8",
    summary="attention of requests with one query each over the paged cache",
    inputs=Inputs(
        params=_Params,
        whole_contexts=True,
        problem=problem,
        cases=_cases,
        boundaries=_boundaries,
        large=_large,
        from_batch=_from_batch,
        faults=DECODE_FAULTS,
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
    built_in=BuiltIn(kernels=True, package="xformers", load=import_xformers),
)

OPERATIONS = (decode_attention,)
