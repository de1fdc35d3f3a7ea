"""Queries, keys, values and paged caches for a batch, with NaN in unwritten places.

Keys and values are generated per slot, so requests that share a block share its content.
NaN in the other slots exposes any read of a stale block.
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

MAGNITUDES = ("normal", "large", "denormal", "ties", "one key", "rising", "falling", "lowest")
"""Kinds of numbers: "ties" gives many keys exactly the same score, "one key" makes one key
outweigh all others. With "rising" and "falling" scores rise or fall by 192 along each
sequence, for the default scale; with "lowest" all scores are equal, and below the lowest number
of float16."""
CACHES = ("auto", "fp8", "uint8")
"""Dtypes of the cache: the queries' dtype, float8_e4m3fn, or the same bits as uint8."""
QUERY, KEY, VALUE, CACHE, OUT = "query", "key", "value", "kv_cache", "out"
OUT_DTYPES = {"float32": torch.float32, "float64": torch.float64}
"""Dtypes of an output that is not rounded to the queries' dtype."""
_FIRST, _STEEP, _LOWEST = 32.0, 3.0, -32768.0
"""First element of queries; that of the last key of "rising", to be multiplied by the root of the
head size, so that scores rise from -96 to 96; that of keys of "lowest"."""
_LOWEST_BLOCK = 2
"""Lowest allocated block; blocks 0 and 1 stay unused, as stale columns often hold 0."""
_NAN = {1: 0x7F, 2: 0x7FFF}
"""NaN as a word by size in bytes; the 2-byte word is one in float16 and in bfloat16."""
_UNWRITTEN_OUTPUT = {2: -0x13, 4: -0x121213, 8: -0x2121212121213}
"""Initial word of the output by size in bytes: a NaN that no computation produces."""


class Shape(NamedTuple):
    """Heads, dtypes and content of one layer, from a case's parameters."""

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
    """One of MAGNITUDES."""
    seed: int
    """Seed of the generated numbers."""

    @classmethod
    def of(cls, params: dict[str, Any]) -> Shape:
        """Make a shape from parameters; `group` is the number of query heads per kv head.

        Values that shrinking made invalid are replaced by valid ones.
        """
        kv_heads = max(1, params["num_kv_heads"])
        return cls(
            kv_heads * max(1, params["group"]),
            kv_heads,
            max(1, params["head_size"]),
            torch.bfloat16 if params["dtype"] == "bfloat16" else torch.float16,
            params["cache"] if params["cache"] in CACHES else "auto",
            params["layout"] % len(LAYOUTS),
            float(params.get("k_scale", 1.0)),
            float(params.get("v_scale", 1.0)),
            params["magnitude"] if params["magnitude"] in MAGNITUDES else "normal",
            params["seed"],
        )

    @property
    def cache_dtype(self) -> torch.dtype:
        """Dtype of the cache's elements."""
        fp8 = {"fp8": torch.float8_e4m3fn, "uint8": torch.uint8}
        return fp8.get(self.cache, self.dtype)

    @property
    def kv_cache_dtype(self) -> str:
        """Name of the cache's dtype in engines: "auto" or "fp8"."""
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
"""Parameters of the layer towards which cases shrink."""


def with_dense_block_ids(batch: Batch, lowest: int = _LOWEST_BLOCK) -> Batch:
    """Renumber the batch's blocks from `lowest` on, in order, so that a small cache holds them."""
    ids = sorted({block for row in batch.blocks for block in row})
    rank = {block: lowest + place for place, block in enumerate(ids)}
    blocks = tuple(tuple(rank[block] for block in row) for row in batch.blocks)
    return msgspec.structs.replace(batch, blocks=blocks)


def num_blocks(batch: Batch) -> int:
    """Return the number of blocks of a cache for a batch with dense block ids.

    The number is even, and at least two blocks after the highest one in use stay unused.
    """
    highest = max((block for row in batch.blocks for block in row), default=_LOWEST_BLOCK)
    return (highest | 1) + 1 + _LOWEST_BLOCK


class AttentionInputs:
    """Inputs of one layer for a batch with dense block ids.

    `written` is the content of the cache before the call: "all" positions of every sequence,
    the "computed" ones before this engine step's queries, or "nothing".
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
        """Return query, key, value, output and cache as pieces of an arena.

        `spare_rows` rows of NaN follow the new tokens. `gap` poisoned elements separate the
        rows of two tokens, as in a fused buffer. The output has the queries' dtype by default.
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
        """Return query, output and cache only, for a batch whose new keys are in the cache.

        Rows of padded tokens hold NaN in the query.
        """
        shape = self.shape
        query = np.full((self.tokens, shape.num_heads, shape.head_size), np.nan, np.float32)
        query[: self.batch.num_tokens] = _queries(self.batch, shape)
        out = _unwritten(query.shape, out_dtype, gap)
        return [_piece(QUERY, query, shape.dtype, gap), out, self.cache(pattern)]

    def cache(self, pattern: int) -> Piece:
        """Return the cache as a piece of an arena, with the block ids of `lay_out`'s pattern."""
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
        return self.paged.piece_of(held)

    def cache_tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """View the memory of `cache` in the cache's dtype, (2, num_blocks, B, Hkv, D)."""
        return self.paged.tensor(memory)

    def cache_words(self, memory: torch.Tensor) -> torch.Tensor:
        """View the memory of `cache` as words, which can be compared even if they are NaN."""
        return self.paged.words(memory)

    def words_of(self, piece: Piece) -> torch.Tensor:
        """Return the words of the piece `cache`, (2, num_blocks, B, Hkv, D)."""
        return self.cache_words(torch.from_numpy(piece.values))

    def tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """View the memory of another piece in the queries' dtype."""
        return memory.view(self.shape.dtype)

    @property
    def paged(self) -> PagedCache:
        """Shape, dtype and layout of the cache."""
        shape = self.shape
        dtype = str(shape.cache_dtype).removeprefix("torch.")
        sizes = (shape.num_kv_heads, shape.head_size)
        blocks = num_blocks(self.batch)
        return PagedCache(CACHE, blocks, self.batch.block_size, *sizes, dtype, shape.layout)


_WORDS: dict[int, Any] = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def as_words(values: np.ndarray, dtype: torch.dtype, scale: float = 1.0) -> np.ndarray:
    """Round floats to `dtype`, as integers of its size; fp8 and uint8 hold `x / scale`."""
    floats = torch.from_numpy(np.ascontiguousarray(values))
    if dtype.itemsize == 1:
        floats = (floats / scale).clamp(-448, 448)
        return floats.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return floats.to(dtype).view(torch.int16).numpy()


def query_token_slots(batch: Batch) -> np.ndarray:
    """Return the slots of the batch's query tokens, (T,) int64."""
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
    """Return (num_blocks, B) bool, True for slots that are written before the call."""
    live = np.zeros((num_blocks(batch), batch.block_size), np.bool_)
    for blocks, computed, query in zip(
        batch.blocks, batch.computed_lens, batch.query_lens, strict=True
    ):
        length = {"all": computed + query, "computed": computed, "nothing": 0}[written]
        places = np.arange(length)
        ids = np.array(blocks, np.int64)[places // batch.block_size] if length else places
        live[ids, places % batch.block_size] = True
    if written == "computed":  # what this step writes, perhaps into a block that rows share
        live.reshape(-1)[query_token_slots(batch)] = False
    return live


@lru_cache(maxsize=8)
def _content(batch: Batch, shape: Shape, half: int) -> np.ndarray:
    """Return keys (half 0) or values (1) of every slot, (num_blocks, B, Hkv, D) float32.

    They are rounded to the queries' dtype.
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
    elif shape.magnitude in ("rising", "falling") and half == 0:
        for row in batch.blocks:
            steep = _STEEP * shape.head_size**0.5
            slope = np.linspace(-steep, steep, len(row), dtype=np.float32)
            numbers[list(row), ..., 0] = np.reshape(slope, (-1, 1, 1))
        numbers[..., 0] *= 1 if shape.magnitude == "rising" else -1
    elif shape.magnitude == "lowest":
        numbers = abs(numbers)  # a mean near 0 would have a large relative error
        if half == 0:
            numbers *= 0
            numbers[..., 0] = _LOWEST
    return _rounded(numbers, shape.dtype)


@lru_cache(maxsize=8)
def _queries(batch: Batch, shape: Shape) -> np.ndarray:
    """Return the queries, (T, Hq, D) float32, rounded to their dtype."""
    random = np.random.default_rng([shape.seed, 0])
    size = (batch.num_tokens, shape.num_heads, shape.head_size)
    numbers = random.standard_normal(size, np.float32)
    if shape.magnitude == "denormal":
        numbers *= 4096  # so that subnormal keys still affect the scores
    elif shape.magnitude == "ties":
        numbers = np.where(np.arange(shape.head_size) < 2, np.sign(numbers), 0).astype(np.float32)
    elif shape.magnitude in ("rising", "falling", "lowest"):
        numbers[..., 0] = _FIRST
    return _rounded(numbers, shape.dtype)


def _rounded(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    rounded: np.ndarray = torch.from_numpy(values).to(dtype).float().numpy()
    return rounded


def _unwritten(size: tuple[int, ...], dtype: torch.dtype, gap: int) -> Piece:
    """Return the output (tokens, heads, elements) as a piece without any result."""
    words = np.full(size, _UNWRITTEN_OUTPUT[dtype.itemsize], _WORDS[dtype.itemsize])
    return Piece(OUT, words, False, (size[1] * size[2] + gap, size[2], 1))


def _piece(name: str, values: np.ndarray, dtype: torch.dtype, gap: int) -> Piece:
    words = as_words(values, dtype)
    row = words.shape[1] * words.shape[2]
    return Piece(name, words, False, (row + gap, words.shape[2], 1))
