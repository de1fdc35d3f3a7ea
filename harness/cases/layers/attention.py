"""Queries, keys, values and paged caches for a batch, unwritten places full of NaN.

Keys and values belong to blocks, not to requests, so that requests which share a block
agree about it. What no request has written is NaN: any read of a stale page shows.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from attnproof.harness.cases.memory.arena import Piece
from attnproof.harness.cases.memory.paged_cache import LAYOUTS, PagedCache
from attnproof.harness.model.case import Batch

MAGNITUDES = ("normal", "large", "denormal", "ties", "one key")
"""What the numbers are like: "ties" gives many keys exactly the same score, "one key" one
that outweighs all others."""
CACHES = ("auto", "fp8", "uint8")
"""What the cache holds: the queries' dtype, float8_e4m3fn, or the same bits as uint8."""
QUERY, KEY, VALUE, CACHE, OUT = "query", "key", "value", "kv_cache", "out"
OUT_DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""Of a result that is not rounded to the queries' dtype."""
_LOWEST_BLOCK = 2
"""Blocks 0 and 1 are nobody's: a stale column often holds 0."""
_NAN = {1: 0x7F, 2: 0x7FFF}
"""By size in bytes: NaN as float8_e4m3fn, as float16 and as bfloat16."""
_NOTHING = {2: -0x13, 4: -0x121213, 8: -0x2121212121213}
"""By size in bytes: another NaN of every float of that size, where a result is to be."""


class Shape(NamedTuple):
    """Heads and dtypes of one layer, as a case's parameters say."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype
    cache: str
    """One of CACHES."""
    layout: int
    """Index into `paged_cache.LAYOUTS`."""
    k_scale: float
    v_scale: float
    magnitude: str
    seed: int

    @classmethod
    def of(cls, params: dict[str, Any]) -> Shape:
        """From `num_kv_heads`, `group` (query heads to each), `head_size` and the rest."""
        kv_heads = max(1, params["num_kv_heads"])
        return cls(
            kv_heads * max(1, params["group"]),
            kv_heads,
            max(1, params["head_size"]),
            torch.bfloat16 if params["dtype"] == "bfloat16" else torch.float16,
            params["cache"] if params["cache"] in CACHES else "auto",
            params["layout"] % len(LAYOUTS),
            params.get("k_scale") or 1.0,
            params.get("v_scale") or 1.0,
            params["magnitude"] if params["magnitude"] in MAGNITUDES else "normal",
            params["seed"],
        )

    @property
    def cache_dtype(self) -> torch.dtype:
        """Of the cache's elements."""
        fp8 = {"fp8": torch.float8_e4m3fn, "uint8": torch.uint8}
        return fp8.get(self.cache, self.dtype)

    @property
    def kv_cache_dtype(self) -> str:
        """As engines say it."""
        return "auto" if self.cache == "auto" else "fp8"


SIMPLEST_LAYER: dict[str, Any] = {
    "num_kv_heads": 1,
    "group": 1,
    "head_size": 32,
    "dtype": "float16",
    "cache": "auto",
    "layout": 0,
    "magnitude": "normal",
    "seed": 0,
}
"""Parameters of the simplest layer."""


def with_dense_block_ids(batch: Batch) -> Batch:
    """The batch with its blocks renumbered from 2 on, in their order: a cache has room for them."""
    ids = sorted({block for row in batch.blocks for block in row})
    rank = {block: _LOWEST_BLOCK + place for place, block in enumerate(ids)}
    blocks = tuple(tuple(rank[block] for block in row) for row in batch.blocks)
    return msgspec.structs.replace(batch, blocks=blocks)


def num_blocks(batch: Batch) -> int:
    """Blocks of a cache for a dense batch: an even number, and two that nobody has."""
    highest = max((block for row in batch.blocks for block in row), default=_LOWEST_BLOCK)
    return (highest | 1) + 1 + _LOWEST_BLOCK


class AttentionInputs:
    """What a layer computes with for a dense batch; `written` says what the cache holds already.

    With `written` "all" every position of every sequence, with "computed" only those
    before this step's queries, with "nothing" none.
    """

    def __init__(self, batch: Batch, shape: Shape, written: str) -> None:
        self.batch, self.shape = batch, shape
        self.tokens = batch.num_tokens + batch.padded_tokens
        self.keys, self.values = (_content(batch, shape, half) for half in (0, 1))
        self._live = _live_slots(batch, written)

    def pieces(
        self,
        pattern: int,
        *,
        spare_rows: int = 0,
        gap: int = 0,
        out_dtype: torch.dtype | None = None,
    ) -> list[Piece]:
        """Query, key, value, cache and output; `spare_rows` of NaN behind the new tokens.

        `gap` elements of somebody else lie between two tokens' rows, as in a fused buffer.
        The output has the queries' dtype where `out_dtype` gives no other.
        """
        shape, rows = self.shape, self.tokens + spare_rows
        query = np.full((rows, shape.num_heads, shape.head_size), np.nan, np.float32)
        query[: self.batch.num_tokens] = _queries(self.batch, shape)
        new = np.full((2, rows, shape.num_kv_heads, shape.head_size), np.nan, np.float32)
        slots = query_token_slots(self.batch)
        for half, content in enumerate((self.keys, self.values)):
            new[half, : len(slots)] = content.reshape(-1, *content.shape[2:])[slots]
        pieces = [
            _piece(name, array, shape.dtype, gap)
            for name, array in ((QUERY, query), (KEY, new[0]), (VALUE, new[1]))
        ]
        out = _unwritten(query.shape, out_dtype or shape.dtype, gap)
        return [*pieces, out, self.cache(pattern)]

    def attention_pieces(self, pattern: int, gap: int, out_dtype: torch.dtype) -> list[Piece]:
        """Query, cache and output alone, for a batch whose new keys are in the cache already.

        Rows of padded tokens hold NaN in query, and all of `out` holds one that nothing gives.
        """
        shape = self.shape
        query = np.full((self.tokens, shape.num_heads, shape.head_size), np.nan, np.float32)
        query[: self.batch.num_tokens] = _queries(self.batch, shape)
        out = _unwritten(query.shape, out_dtype, gap)
        return [_piece(QUERY, query, shape.dtype, gap), out, self.cache(pattern)]

    def cache(self, pattern: int) -> Piece:
        """The cache as words; with pattern 1 each block lies where `lay_out` puts it then."""
        shape = self.shape
        size = shape.cache_dtype.itemsize
        held = np.full((2, *self.keys.shape), _NAN[size], _WORDS[size])
        for half, (content, scale) in enumerate(
            ((self.keys, shape.k_scale), (self.values, shape.v_scale))
        ):
            words = as_words(content, shape.cache_dtype, scale)
            held[half][self._live] = words[self._live]
        if pattern:
            held = held[:, np.arange(held.shape[1]) ^ 1]
        return self._paged().piece_of(held)

    def cache_tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """What `cache` became, (2, num_blocks, B, Hkv, D) in the cache's dtype."""
        return self._paged().tensor(memory)

    def cache_words(self, memory: torch.Tensor) -> torch.Tensor:
        """The same as integers, which can be compared where there is NaN."""
        return self._paged().words(memory)

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """What another piece became, in the queries' dtype."""
        return memory.view(self.shape.dtype)

    def _paged(self) -> PagedCache:
        shape = self.shape
        dtype = str(shape.cache_dtype).removeprefix("torch.")
        sizes = (shape.num_kv_heads, shape.head_size)
        blocks = num_blocks(self.batch)
        return PagedCache(CACHE, blocks, self.batch.block_size, *sizes, dtype, shape.layout)


_WORDS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def as_words(values: np.ndarray, dtype: torch.dtype, scale: float = 1.0) -> np.ndarray:
    """Floats rounded to `dtype`, as integers of its size; fp8 and uint8 hold `x / scale`."""
    floats = torch.from_numpy(np.ascontiguousarray(values))
    if dtype.itemsize == 1:
        floats = (floats / scale).clamp(-448, 448)
        return floats.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return floats.to(dtype).view(torch.int16).numpy()


def query_token_slots(batch: Batch) -> np.ndarray:
    """Slots of the batch's query tokens, int64."""
    positions = [
        (np.array(blocks, np.int64), np.arange(computed, computed + query))
        for blocks, computed, query in zip(
            batch.blocks, batch.computed_lens, batch.query_lens, strict=True
        )
        if query
    ]
    size = batch.block_size
    rows = [blocks[place // size] * size + place % size for blocks, place in positions]
    return np.concatenate([np.zeros(0, np.int64), *rows])


def _live_slots(batch: Batch, written: str) -> np.ndarray:
    """(num_blocks, B) bool: which slots of the cache hold something already."""
    live = np.zeros((num_blocks(batch), batch.block_size), np.bool_)
    for blocks, computed, query in zip(
        batch.blocks, batch.computed_lens, batch.query_lens, strict=True
    ):
        length = {"all": computed + query, "computed": computed, "nothing": 0}[written]
        places = np.arange(length)
        ids = np.array(blocks, np.int64)[places // batch.block_size] if length else places
        live[ids, places % batch.block_size] = True
    return live


@lru_cache(maxsize=8)
def _content(batch: Batch, shape: Shape, half: int) -> np.ndarray:
    """(num_blocks, B, Hkv, D) float32: keys (half 0) or values (1) of every slot.

    Rounded to the dtype in which they are given to the cache.
    """
    size = (num_blocks(batch), batch.block_size, shape.num_kv_heads, shape.head_size)
    random = np.random.default_rng([shape.seed, 1 + half])
    numbers = random.standard_normal(size, np.float32)
    if shape.magnitude == "large":
        numbers *= 6 if half == 0 else 4096
    elif shape.magnitude == "denormal":
        numbers *= 2.0**-13 if half == 0 else 2.0**-10
    elif shape.magnitude == "ties" and half == 0:
        numbers = np.sign(numbers)
    elif shape.magnitude == "one key" and half == 0:
        numbers[:, 0] *= 24
    return _rounded(numbers, shape.dtype)


@lru_cache(maxsize=8)
def _queries(batch: Batch, shape: Shape) -> np.ndarray:
    """(T, Hq, D) float32, rounded to the queries' dtype."""
    random = np.random.default_rng([shape.seed, 0])
    size = (batch.num_tokens, shape.num_heads, shape.head_size)
    numbers = random.standard_normal(size, np.float32)
    if shape.magnitude == "denormal":
        numbers *= 4096  # keys below float16's least normal number must still count
    elif shape.magnitude == "ties":
        numbers = np.where(np.arange(shape.head_size) < 2, np.sign(numbers), 0).astype(np.float32)
    return _rounded(numbers, shape.dtype)


def _rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    rounded: np.ndarray = torch.from_numpy(values).to(dtype).float().numpy()
    return rounded


def _unwritten(size: tuple[int, ...], dtype: torch.dtype, gap: int) -> Piece:
    """An output of tokens, heads and elements before anything is written to it."""
    words = np.full(size, _NOTHING[dtype.itemsize], _WORDS[dtype.itemsize])
    return Piece(OUT, words, False, (size[1] * size[2] + gap, size[2], 1))


def _piece(name: str, values: np.ndarray, dtype: torch.dtype, gap: int) -> Piece:
    words = as_words(values, dtype)
    row = words.shape[1] * words.shape[2]
    return Piece(name, words, False, (row + gap, words.shape[2], 1))
