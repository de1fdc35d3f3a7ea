"""Cases of `XFormersAttentionImpl`: drawn, at boundaries, large and timed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.layers.attention import MAGNITUDES, SIMPLEST_LAYER
from attnproof.harness.cases.layers.shapes import MODELS
from attnproof.harness.cases.layers.xformers_step import shortened_batch
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few, LayerParams, OutDtype, layer_problem

NAME = "XFormersAttentionImpl"
_MODELS = ("gpt-oss-20b", "Gemma-2-9B", "Falcon-7B", "Phi-2")
"""Models whose heads differ most, with windows and a soft cap among them."""
_STEP: dict[str, Any] = {
    "window": 0,
    "soft_cap": 0.0,
    "flat": False,
    "profile": False,
    "gap": 0,
    "spare_rows": 0,
    "out": "",
}
"""Parameters of a plain step: no window, no soft cap, 3-D output in the queries' dtype."""


class ImplParams(LayerParams, kw_only=True):
    """Parameters of a step of one layer."""

    flat: bool
    """True for an output of two dimensions."""
    profile: bool
    """True for a profiling run, which has no metadata."""
    gap: Few
    spare_rows: Few
    """Rows of queries and output behind the tokens."""
    out: OutDtype
    no_mask: bool = False
    """True if the metadata has no mask of the decodes, as without xformers."""


def problem(case: Case) -> str:
    """Return why the layer cannot be made, "" if it can."""
    return layer_problem(batch_of(case), case.params)


def _case(batch: Batch, **params: Any) -> Case:
    """Return a case; `params` override the simplest layer and the plain step."""
    return Case(NAME, batch, SIMPLEST_LAYER | _STEP | params)


@st.composite
def layers(draw: st.DrawFn, block_size: int) -> dict[str, Any]:
    """Draw the parameters of a layer, mostly small, for pages of `block_size` tokens."""
    params: dict[str, Any] = {
        "num_kv_heads": draw(st.sampled_from((1, 1, 1, 2))),
        "group": draw(st.sampled_from((1, 2, 1, 2, 3, 4, 8))),
        "head_size": draw(st.sampled_from((32, 32, 64, 40, 72, 96, 120))),
        "dtype": draw(st.sampled_from(("float16", "bfloat16"))),
        "layout": draw(st.integers(0, 3)),
        "seed": draw(st.integers(0, 99)),
    }
    kind = draw(st.integers(0, 9))
    if kind == 1:
        params |= {
            "cache": draw(st.sampled_from(("fp8", "uint8"))),
            "k_scale": 0.25,
            "v_scale": 2.0,
        }
    elif kind in (2, 3):
        edges = (1, 2, block_size - 1, block_size, block_size + 1, 40)
        params["window"] = max(1, draw(st.sampled_from(edges)))
    elif kind == 4:
        params["magnitude"] = draw(st.sampled_from(MAGNITUDES))
    if kind in (3, 5):
        params["soft_cap"] = draw(st.sampled_from((2.0, 30.0)))
    return params


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case."""
    batch = shortened_batch(draw(batches(max_requests=2)))
    params = draw(layers(batch.block_size))
    extra = draw(st.integers(0, 11))
    params |= {"flat": extra == 1, "profile": extra == 2, "gap": 8 * (extra in (1, 3))}
    params["out"] = {4: "float32", 5: "float64"}.get(extra, "")
    return _case(batch, spare_rows=draw(st.sampled_from((0, 0, 3))), **params)


def boundaries() -> Iterator[tuple[str, Case]]:
    """Yield the boundaries: batches, outputs, windows, caches, numbers, heads and pages."""
    full = make_batch([1, 1, 5, 3], [20, 33, 0, 6], 16, order="shuffled")
    mixed = make_batch([1, 4], [20, 2], 16, order="descending")
    decodes = make_batch([1, 1], [20, 33], 16, order="descending")
    yield "decodes and prefills", _case(full, group=2, num_kv_heads=2)
    yield "only decodes", _case(decodes, num_kv_heads=2, group=4, head_size=64)
    yield "decodes without a mask", _case(decodes, no_mask=True)
    yield "one decode without a mask, and a prefill", _case(mixed, no_mask=True)
    yield "only prefills", _case(make_batch([5, 3], [0, 6], 16), group=4)
    yield "one token", _case(make_batch([1], [0], 16))
    yield "an idle row, and a padded token", _case(make_batch([0], [4], 16, padded_tokens=1))
    yield "no requests", _case(make_batch([], [], 16))
    yield "no requests, padded tokens", _case(make_batch([], [], 16, padded_tokens=2))
    yield "profiling run", _case(mixed, profile=True)
    yield "2-D output", _case(mixed, flat=True, gap=8)
    yield "output in float32", _case(mixed, out="float32", group=4)
    yield "2-D output in float64", _case(mixed, out="float64", group=2, flat=True)
    yield "output in float32 of decodes alone", _case(decodes, out="float32", group=2)
    yield "rows of a fused buffer", _case(mixed, gap=16, spare_rows=2)
    yield from _rows_and_tokens_apart()
    tail = make_batch([1, 5], [6, 0], 16, padded_requests=1, padded_tokens=3)
    yield "prefill with padded tokens behind it", _case(tail, spare_rows=3)
    stale = make_batch([1, 1, 4], [6, 17, 2], 16, spare_slots=3, spare_columns=2)
    yield "stale slots behind the tokens (E24)", _case(stale, spare_rows=3)
    for window in (1, 15, 16, 17, 64):
        yield f"window of {window} (K24, E14)", _case(mixed, window=window, group=2)
    yield "window on decodes alone (K24, E14)", _case(decodes, window=7, head_size=64)
    yield "soft cap (K24, E14)", _case(mixed, soft_cap=2.0, group=2)
    yield "soft cap on decodes alone (K24, E14)", _case(decodes, soft_cap=1.0)
    yield "window and soft cap", _case(mixed, window=9, soft_cap=1.5)
    fp8 = {"k_scale": 0.25, "v_scale": 0.5, "group": 2}
    yield "fp8 cache (E25)", _case(mixed, cache="fp8", **fp8)
    yield "fp8 bits as uint8, decodes (E25)", _case(decodes, cache="uint8", **fp8)
    yield "bfloat16", _case(mixed, dtype="bfloat16", group=3)
    yield "bfloat16, fp8 cache", _case(mixed, dtype="bfloat16", cache="fp8", **fp8)
    for magnitude in MAGNITUDES[1:]:
        yield f"magnitude: {magnitude}", _case(mixed, magnitude=magnitude)
    for group in (3, 5, 8):
        yield f"{group} query heads a key head", _case(mixed, group=group)
    for size in (40, 72, 120, 128, 256):
        yield f"head size {size}", _case(make_batch([1, 3], [20, 5], 16), head_size=size, group=2)
    for pages in (32, 48, 64, 128):
        paged = make_batch([1, 1, 4], [pages, pages - 1, pages + 1], pages, order="descending")
        yield f"pages of {pages}, lengths at their edges", _case(paged, head_size=32, group=2)
    yield "pages of 1", _case(make_batch([1, 3], [5, 2], 1, order="descending"))
    for layout, name in ((1, "HND"), (2, "blocks first"), (3, "heads first")):
        yield f"cache laid out {name}", _case(mixed, layout=layout, num_kv_heads=2)
    wide = make_batch([1, 1, 3], [20, 3, 2], 16, strided=True, dtype="int64", spare_columns=2)
    yield "strided int64", _case(wide)
    # A prompt of whole cached blocks and one token more beside the prompt that fills the blocks.
    filled = replace(make_batch([1, 32], [32, 0], 16), blocks=((4, 2, 7), (4, 2)))
    yield "prefix that a prefill of the same step fills", _case(filled)
    yield "shared prefix blocks", _case(make_batch([1, 2], [32, 32], 16, shared=True))
    for model in MODELS:
        if model.name in _MODELS:
            heads = model.layer | {"num_kv_heads": min(2, model.num_kv_heads)}
            bounds = {"window": -(-model.window // 256), "soft_cap": float(model.soft_cap)}
            yield f"{model.name}, scaled down", _case(mixed, **heads, **bounds)


def _rows_and_tokens_apart() -> Iterator[tuple[str, Case]]:
    """Yield decodes in which a token's index is not its row's index."""
    idle = make_batch([1, 0, 0, 3], [20, 4, 0, 5], 16)
    yield "idle rows among the decodes (E23)", _case(idle, group=2)
    graph = make_batch([1, 1], [20, 3], 16, padded_requests=2, padded_tokens=2)
    yield "decodes in a larger graph (E23)", _case(graph, group=2)
    evened = make_batch([1, 1], [20, 3], 16, padded_requests=1, padded_tokens=1)
    yield "as many tokens as rows, one of them padding (E23)", _case(evened)
    more_tokens = make_batch([1, 1], [20, 3], 16, padded_tokens=2)
    yield "decodes, more tokens than rows (E23)", _case(more_tokens, group=2)


def large() -> Iterator[tuple[str, Case]]:
    """Yield cases of real size."""
    # Requests share prefixes, because generating separate sequences would take minutes.
    starts = [4000 + 17 * row for row in range(24)]
    batch = make_batch([1] * 24 + [64], [*starts, 3000], 16, shared=True)
    llama = MODELS[0].layer | {"dtype": "bfloat16"}
    yield "decodes and a chunked prefill", _case(batch, **llama)
    fp8 = {"cache": "fp8", "k_scale": 0.3, "v_scale": 0.07}
    yield "the same with an fp8 cache and a window", _case(batch, **llama, **fp8, window=1024)
    decodes = make_batch([1] * 24, starts, 16, shared=True)
    yield "only decodes", _case(decodes, **MODELS[0].layer)


def steps(batch: Batch) -> Iterator[Case]:
    """Yield the case of an engine step with an odd number of tokens."""
    if batch.num_tokens % 2:
        yield _case(
            shortened_batch(batch), group=1 + batch.num_tokens % 3, seed=batch.num_tokens % 50
        )


def timed_models() -> Iterator[tuple[str, Case]]:
    """Yield two decodes and the end of a prompt for each model."""
    batch = make_batch([1, 1, 8], [100, 200, 56], 16, order="shuffled")
    for model in MODELS:
        yield model.name, _case(batch, **model.layer, window=model.window, soft_cap=model.soft_cap)
