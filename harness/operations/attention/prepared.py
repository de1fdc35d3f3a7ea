"""Cases and calls of `paged_attention` and `decode_attention`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, Any

import msgspec
import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.tensors import table_piece
from attnproof.harness.cases.layers.attention import (
    CACHE,
    MAGNITUDES,
    OUT,
    OUT_DTYPES,
    QUERY,
    SIMPLEST_LAYER,
    AttentionInputs,
    Shape,
    with_dense_block_ids,
)
from attnproof.harness.cases.memory import far_memory
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.cases.memory.paged_cache import LAYOUTS, PagedCache
from attnproof.harness.model.call import Call, Facts
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import (
    Counts,
    Few,
    LayerParams,
    OutDtype,
    layer_problem,
)

LAYER: dict[str, Any] = SIMPLEST_LAYER | {
    "k_scale": 1.0,
    "v_scale": 1.0,
    "window": 0,
    "soft_cap": 0,
    "scale": 0.0,
    "out": "",
    "gap": 0,
    "missing": [],
    "far": False,
}
"""Parameters of a call of the simplest layer: no window, no cap, scale 1 / sqrt(head size).

`missing[r]` is the number of tokens removed from the sequence of request r. A sequence that
loses all its tokens has queries at positions below 0.
"""
HEAD_SIZES = (32, 64, 40, 72, 128, 16, 120, 7, 96, 80, 256)

_WINDOW = st.sampled_from((0, 0, 0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 500))
_SOFT_CAP = st.sampled_from((0, 0, 0, 1, 30))
_SCALE = st.sampled_from((0.0, 0.0, 0.0, 1.0, -0.25, 0.01))
_CACHES = st.sampled_from(("auto", "auto", "auto", "fp8", "uint8"))
_SCALES = st.sampled_from(((1.0, 1.0), (0.5, 2.0), (0.3, 0.07), (7.0, 1.3)))


class AttentionParams(LayerParams, kw_only=True):
    """Parameters of an attention over the paged cache."""

    scale: Annotated[float, Meta(ge=-1000, le=1000)]
    """Factor of the scores, 0 for the default, 1 / sqrt(head size)."""
    out: OutDtype
    """Dtype of the result, "" for that of the queries."""
    gap: Few
    """Elements between the rows of queries and results."""
    missing: Counts
    """Keys that each request lacks."""
    far: bool
    """True if offsets in the cache are above 2**31 elements."""


def problem(case: Case) -> str:
    """Return why the layer cannot be made, "" if it can."""
    return layer_problem(batch_of(case), case.params)


@st.composite
def layers(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the parameters of a call."""
    # Mostly one kv head and small heads: Triton's interpreter is slow.
    k_scale, v_scale = draw(_SCALES)
    magnitude = draw(st.sampled_from(MAGNITUDES))
    default = magnitude in ("rising", "falling")  # higher scores have larger rounding errors
    return LAYER | {
        "num_kv_heads": draw(st.sampled_from((1, 1, 1, 1, 2))),
        "group": draw(st.sampled_from((1, 2, 4, 3, 8, 5))),
        "head_size": draw(st.sampled_from(HEAD_SIZES[:8])),
        "dtype": draw(st.sampled_from(("float16", "bfloat16"))),
        "cache": draw(_CACHES),
        "layout": draw(st.integers(0, len(LAYOUTS) - 1)),
        "magnitude": magnitude,
        "seed": draw(st.integers(0, 99)),
        "k_scale": k_scale,
        "v_scale": v_scale,
        "window": draw(_WINDOW),
        "soft_cap": draw(_SOFT_CAP),
        "scale": 0.0 if default else draw(_SCALE),
        "out": draw(st.sampled_from(("", "", "float32", "float64"))),
        "gap": draw(st.sampled_from((0, 0, 8, 3))),
        "missing": draw(st.sampled_from(([], [], [0, 2], [1], [40, 0, 1]))),
    }


def capped(batch: Batch, queries: int, computed: int, requests: int = 4) -> Batch:
    """Return the batch with its first requests, shortened, so that a case stays cheap."""
    query_lens = [min(q, queries) for q in batch.query_lens[:requests]]
    computed_lens = [min(c, computed) for c in batch.computed_lens[:requests]]
    return _with_lengths(batch, query_lens, computed_lens, batch.padded_requests)


def shared_batch(query_lens: list[int], computed_lens: list[int], block_size: int) -> Batch:
    """Return a batch whose requests have most blocks in common, in different orders."""
    lengths = [q + c for q, c in zip(query_lens, computed_lens, strict=True)]
    counts = [-(-length // block_size) for length in lengths]
    pool = 2 * max(counts)
    ids = Random(pool).sample(range(pool), pool)
    rows = (
        tuple(ids[(37 * row + column) % pool] for column in range(count))
        for row, count in enumerate(counts)
    )
    return Batch(block_size, tuple(query_lens), tuple(computed_lens), tuple(rows))


def _with_lengths(
    batch: Batch, query_lens: list[int], computed_lens: list[int], padded_requests: int
) -> Batch:
    """Return the batch with these lengths and as many blocks a row as they need."""
    counts = [
        -(-(q + c) // batch.block_size) for q, c in zip(query_lens, computed_lens, strict=True)
    ]
    return msgspec.structs.replace(
        batch,
        query_lens=tuple(query_lens),
        computed_lens=tuple(computed_lens),
        blocks=tuple(
            row[: max(0, count)] for row, count in zip(batch.blocks, counts, strict=False)
        ),
        padded_requests=padded_requests,
        logits_indices=None,
        encoder_seq_lens=None,
        dcp_local_seq_lens=None,
        subclassed=False,
        later=False,
        prompt_lens=None,
    )


class PreparedAttention:
    """The batch of a case, and the tensors of its call in guarded memory.

    With `one_each` every row of the batch, including padded rows, is a request with one query.
    """

    def __init__(self, case: Case, pattern: int, device: str, *, one_each: bool) -> None:
        params = case.params
        self.params, self.shape = params, Shape.of(params)
        self.batch = _actual(case, one_each=one_each)
        self.dtype = OUT_DTYPES.get(params["out"], self.shape.dtype)
        attention = AttentionInputs(self.batch, self.shape, "all")
        numbers = _Rows(self.batch)
        step = 2 if self.batch.strided else 1
        pieces = attention.attention_pieces(pattern, params["gap"], self.dtype)
        words = attention.words_of(pieces.pop()) if params["far"] else None
        ids = self._block_ids(pattern, attention.paged)
        arena = Arena(
            [
                *pieces,
                Piece("query_start_loc", numbers.query_start_loc, False, (step,)),
                Piece("seq_lens", numbers.seq_lens, False, (step,)),
                table_piece("block_table", numbers.table(ids, STALE_PATTERNS[pattern]), step),
            ],
            STALE_PATTERNS[pattern],
            device,
        )
        self.arena, self.device = arena, device
        self.query = arena.tensors[QUERY].view(self.shape.dtype)
        self.out = arena.tensors[OUT].view(self.dtype)
        if words is None:
            self.cache = attention.cache_tensor(arena.tensors[CACHE])
        else:
            self.cache = far_memory.far_cache(attention.paged, device)
            far_memory.fill_near_blocks(self.cache, words.to(device))
        self.before = arena.tensors[OUT].clone()
        self.tokens = self.batch.num_tokens
        self.max_query_len = int(max(self.batch.query_lens, default=0)) + self.batch.query_slack
        self.max_seq_len = int(numbers.seq_lens.max(initial=0)) + self.batch.seq_slack

    @property
    def sliding_window(self) -> int | None:
        """Argument `sliding_window`."""
        return self.params["window"] or None

    @property
    def soft_cap(self) -> float | None:
        """Argument `logits_soft_cap`."""
        return float(self.params["soft_cap"]) or None

    @property
    def scale(self) -> float:
        """Argument `scale`."""
        return float(self.params["scale"] or self.shape.head_size**-0.5)

    @cached_property
    def scales(self) -> dict[str, torch.Tensor | None]:
        """Arguments `k_scale` and `v_scale`, None unless the cache is fp8."""
        if self.shape.cache == "auto":
            return {"k_scale": None, "v_scale": None}
        values = {"k_scale": self.shape.k_scale, "v_scale": self.shape.v_scale}
        return {
            name: torch.tensor([value], dtype=torch.float32, device=self.device)
            for name, value in values.items()
        }

    def call(self, rows: tuple[str, ...], **keywords: Any) -> Call:
        """Return a call with the tensors `rows` and the keywords of one of the two operations."""
        return Call(
            {
                "query": self.query,
                "key_cache": self.cache[0],
                "value_cache": self.cache[1],
                **{name: self.arena.tensors[name] for name in rows},
                "scale": self.scale,
            },
            {
                **keywords,
                "max_seq_len": self.max_seq_len,
                "sliding_window": self.sliding_window,
                "logits_soft_cap": self.soft_cap,
                **self.scales,
                OUT: self.out,
            },
            arena=self.arena,
            written=frozenset({OUT}),
            facts=AttentionFacts(prepared=self),
        )

    def _block_ids(self, pattern: int, cache: PagedCache) -> list[list[int]]:
        """Return the block ids of each row; a far cache's upper half has ids behind the gap."""
        rows = [[block ^ 1 if pattern else block for block in row] for row in self.batch.blocks]
        if not self.params["far"]:
            return rows
        return [[far_memory.far_block(block, cache) for block in row] for row in rows]


@dataclass(frozen=True, kw_only=True)
class AttentionFacts(Facts):
    """Facts of a call of attention."""

    prepared: PreparedAttention
    exact: bool = False
    """True if `out` is float64, for the reference."""


class _Rows:
    """Offsets, lengths and tables of the rows of a batch, padded rows last."""

    def __init__(self, batch: Batch) -> None:
        padding = [0] * batch.padded_requests
        queries = np.array([*batch.query_lens, *padding], np.int64)
        computed = np.array([*batch.computed_lens, *padding], np.int64)
        wide_offsets = batch.dtype in ("int64", "int64 offsets")
        wide_lengths = batch.dtype in ("int64", "int64 lengths")
        offsets = np.concatenate([[0], np.cumsum(queries)])
        self.query_start_loc = offsets.astype(np.int64 if wide_offsets else np.int32)
        self.seq_lens = (queries + computed).astype(np.int64 if wide_lengths else np.int32)
        self._width = max(1, max(map(len, batch.blocks), default=0) + batch.spare_columns)

    def table(self, rows: list[list[int]], stale: int) -> np.ndarray:
        """Return (R, W) int32 block ids, with `stale` behind the ids of each row."""
        table = np.full((len(self.seq_lens), self._width), stale, np.int32)
        for row, blocks in enumerate(rows):
            table[row, : len(blocks)] = blocks
        return table


def _actual(case: Case, *, one_each: bool) -> Batch:
    """Return the batch with dense block ids and sequences shortened by `missing`."""
    assert case.batch is not None
    batch = case.batch
    padding = batch.padded_requests if one_each else 0
    queries = [*batch.query_lens, *[0] * padding]
    lengths = [q + c for q, c in zip(queries, (*batch.computed_lens, *[0] * padding), strict=True)]
    missing = [*case.params["missing"], *[0] * len(lengths)]
    lengths = [max(0, length - less) for length, less in zip(lengths, missing, strict=False)]
    if one_each:
        queries = [1] * len(lengths)
    computed = [length - q for length, q in zip(lengths, queries, strict=True)]
    blocks = (*batch.blocks, *[()] * padding)
    batch = msgspec.structs.replace(batch, blocks=blocks)
    if one_each:
        batch = msgspec.structs.replace(batch, padded_tokens=0)
    return with_dense_block_ids(
        _with_lengths(batch, queries, computed, batch.padded_requests - padding)
    )
