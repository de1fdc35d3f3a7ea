"""Arguments of `reshape_and_cache_flash`: new keys and values, their slots and the cache."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import torch

from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.layers import attention
from attnproof.harness.cases.memory import far_memory
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.cases.memory.paged_cache import LAYOUTS, PagedCache
from attnproof.harness.model.case import Batch

KEY, VALUE, CACHE, SLOTS, SCALES = "key", "value", "kv_cache", "slot_mapping", "scales"
SECOND_CACHE = "other kv_cache"
"""Name of the cache for the values if keys and values are in separate caches."""
CONTENTS = ("numbers", "any bits", "ties")
"""Content of keys and values: normal numbers; every bit pattern, including NaN and infinity;
numbers half-way between two fp8 codes."""
ROWS = ("dense", "in a fused buffer", "heads apart", "elements apart")
"""Memory layouts of the new tokens' keys and values."""
CACHES = attention.CACHES
_GAP = 5
"""Elements between two tokens of a fused buffer."""
_CODES = torch.arange(0x7F).to(torch.uint8).view(torch.float8_e4m3fn).double().numpy()
"""Non-negative numbers of float8_e4m3fn, ascending."""


def only_written_blocks(batch: Batch) -> Batch:
    """Remove each request's blocks before the one of its first query token."""
    size = batch.block_size
    rows = list(zip(batch.query_lens, batch.computed_lens, batch.blocks, strict=True))
    blocks = tuple(b[c // size : -(-(c + q) // size)] for q, c, b in rows)
    computed = tuple(c % size if q else 0 for q, c, _ in rows)
    kept = tuple(row if q else () for (q, _, _), row in zip(rows, blocks, strict=True))
    return msgspec.structs.replace(batch, computed_lens=computed, blocks=kept)


class CacheWrite:
    """Arguments and memory of one call, for one poison pattern on one device."""

    def __init__(self, batch: Batch, params: dict[str, Any], pattern: int, device: str) -> None:
        self.dtype = torch.bfloat16 if params["dtype"] == "bfloat16" else torch.float16
        self.quantised = params["cache"] in CACHES[1:]
        self.scales = (params["k_scale"] or 1.0, params["v_scale"] or 1.0)
        heads, head_size = max(1, params["num_kv_heads"]), max(1, params["head_size"])
        # With the second pattern slot 0 is written: no table has stale columns that name it.
        lowest = 0 if pattern else 2
        self.batch = batch = attention.with_dense_block_ids(only_written_blocks(batch), lowest)
        self.slots = _slots(batch, pattern, params["unwritten"])
        fp8 = {"fp8": "float8_e4m3fn", "uint8": "uint8"}
        name = fp8.get(params["cache"], str(self.dtype).removeprefix("torch."))
        blocks = attention.num_blocks(batch)
        shape = (blocks, batch.block_size, heads, head_size)
        layout, gap = params["layout"], params["gap"]
        self._cache = PagedCache(CACHE, *shape, name, layout % len(LAYOUTS), gap)
        self._other = self._cache
        if params["apart"] and not params["far"]:
            self._other = PagedCache(SECOND_CACHE, *shape, name, (layout + 1) % len(LAYOUTS), gap)
        rows = (len(self.slots) + params["spare_rows"], heads, head_size)
        content, seed = CONTENTS[params["content"] % len(CONTENTS)], params["seed"]
        self.source = np.stack(
            [
                _content(content, (seed, half), rows, self.dtype, scale)
                for half, scale in enumerate(self.scales)
            ]
        )
        self.before = self._before(pattern)
        self._far = far_memory.far_cache(self._cache, device) if params["far"] else None
        self.arena = Arena(self._pieces(params), STALE_PATTERNS[pattern] & 0x7F, device)
        if self._far is not None:
            far_memory.fill_near_blocks(self._far, torch.from_numpy(self.before))

    @property
    def args(self) -> dict[str, Any]:
        """Arguments of `reshape_and_cache_flash` by parameter name, in order."""
        tensors = self.arena.tensors
        if self._far is None:
            caches = [cache.tensor(tensors[cache.name]) for cache in (self._cache, self._other)]
        else:
            caches = [self._far, self._far]
        scales = tensors[SCALES].view(torch.float32)
        kv_cache_dtype = {"float8_e4m3fn": "fp8", "uint8": "fp8_e4m3"}.get(self._cache.dtype)
        return {
            **{name: tensors[name].view(self.dtype) for name in (KEY, VALUE)},
            "key_cache": caches[0][0],
            "value_cache": caches[1][1],
            SLOTS: tensors[SLOTS],
            "kv_cache_dtype": kv_cache_dtype or "auto",
            "k_scale": scales[:1],
            "v_scale": scales[1:].reshape(()),
        }

    @property
    def number_dtype(self) -> torch.dtype:
        """Dtype of the numbers in the cache."""
        return torch.float8_e4m3fn if self.quantised else self.dtype

    def words(self) -> torch.Tensor:
        """Return the cache as integers, (2, num_blocks, B, Hkv, D), both fp8 NaN as one code."""
        if self._far is None:
            tensors = self.arena.tensors
            caches = [cache.words(tensors[cache.name]) for cache in (self._cache, self._other)]
            words = torch.stack([caches[0][0], caches[1][1]])
        else:
            near = far_memory.near_blocks(self._far, self._cache.num_blocks)
            words = near.view(torch.from_numpy(self.before).dtype)
        return _one_nan(words) if self.quantised else words

    def element_offsets(self) -> np.ndarray:
        """Return the offset of each slot's first element in its half of the cache."""
        slots = np.arange(self._cache.num_blocks * self._cache.block_size)
        strides = self.args["key_cache"].stride()
        size = self._cache.block_size
        blocks = slots // size
        if self._far is not None:
            upper = blocks >= self._cache.num_blocks // 2
            blocks = blocks + upper * far_memory.far_shift(self._cache)
        offsets: np.ndarray = np.asarray(blocks * strides[0] + slots % size * strides[1])
        return offsets

    def _before(self, pattern: int) -> np.ndarray:
        """Return the cache's words before the call, (2, num_blocks, B, Hkv, D)."""
        caches = (self._cache, self._other)
        words = np.stack([cache.values(pattern)[half] for half, cache in enumerate(caches)])
        if self.quantised:
            # No NaN before the call, so that each NaN of the result was written by it.
            words -= (words & 0x7F) == 0x7F
        return words

    def _pieces(self, params: dict[str, Any]) -> list[Piece]:
        slots = self.slots
        if self._far is not None:
            size = self._cache.block_size
            upper = slots // size >= self._cache.num_blocks // 2
            slots = slots + upper * (far_memory.far_shift(self._cache) * size)
        # NaN exposes a read of the scales, which "auto" forbids.
        scales = self.scales if self.quantised else (np.nan, np.nan)
        shift = params["shift"]  # in elements, to misalign the tensors for wide loads
        words = (np.int16, np.uint8)[: 1 + self.quantised] if shift else ()
        pieces = [
            *(Piece(f"beside {word}", np.zeros(shift, word), False, (1,)) for word in words),
            _rows(KEY, self.source[0], params["rows"]),
            _rows(VALUE, self.source[1], params["rows"] + params["apart"]),
            Piece(SLOTS, slots, False, (2 if params["strided"] else 1,)),
            Piece(SCALES, np.array(scales, np.float32).view(np.int32), False, (3,)),
        ]
        if self._far is None:
            caches = {self._cache, self._other}
            pieces += [cache.piece_of(self.before) for cache in sorted(caches)]
        return pieces


@lru_cache(maxsize=2)  # a timing makes the arguments of one case hundreds of times
def _content(
    content: str, seeds: tuple[int, int], shape: tuple[int, ...], dtype: torch.dtype, scale: float
) -> np.ndarray:
    """Return keys or values as integers, rows without a slot included; the caller must copy them.

    `seeds` are that of the case, and 0 for keys or 1 for values.
    """
    size, (seed, half) = int(np.prod(shape)), seeds
    if content == "any bits":
        # An odd factor permutes the 65,536 patterns.
        mixed = (np.arange(size) * 40503 + seed * 977 + half * 30011) & 0xFFFF
        bits: np.ndarray = mixed.astype(np.uint16).view(np.int16)
        return bits.reshape(shape)
    random = np.random.default_rng(seeds)
    values = random.standard_normal(size, np.float32)
    if content == "ties":
        place = random.integers(0, len(_CODES) - 1, size)
        middle = (_CODES[place] + _CODES[place + 1]) / 2
        with np.errstate(over="ignore"):  # a large scale gives infinities, as in an engine
            values = (middle * scale * np.sign(values)).astype(np.float32)
    words = attention.as_words(values, dtype)
    if content == "ties":  # some become a neighbouring number
        words = words + random.integers(-1, 2, size).astype(np.int16) * (words & 0x7FFF != 0)
    return np.reshape(words, shape)


def _slots(batch: Batch, pattern: int, unwritten: list[int]) -> np.ndarray:
    """Return a slot for each token, -1 for padding and for the tokens in `unwritten`."""
    slots = batch_arrays(batch, pattern).slot_mapping.copy()
    for token in unwritten if len(slots) else ():
        slots[token % len(slots)] = -1
    _, first = np.unique(slots, return_index=True)
    again = np.ones(len(slots), np.bool_)
    again[first] = False
    slots[again] = -1  # shrinking may give two tokens one slot
    return slots


def _rows(name: str, words: np.ndarray, how: int) -> Piece:
    """Return the new tokens' keys or values as a piece with layout `how`."""
    _, heads, size = words.shape
    strides = {
        "dense": (heads * size, size, 1),
        "in a fused buffer": (3 * heads * size + _GAP, size, 1),
        "heads apart": (size, len(words) * size, 1),
        "elements apart": (2 * heads * size, 2 * size, 2),
    }
    return Piece(name, words, False, strides[ROWS[how % len(ROWS)]])


def _one_nan(codes: torch.Tensor) -> torch.Tensor:
    """Return the codes with one of the two fp8 NaN codes replaced by the other."""
    return torch.where((codes & 0x7F) == 0x7F, 0x7F, codes)
