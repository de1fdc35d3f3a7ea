"""Invariants of an engine step through the XFormers backend, independent of the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.layers.attention import (
    CACHE,
    AttentionInputs,
    as_words,
    query_token_slots,
)
from attnproof.harness.cases.layers.tolerance import TOLERANCES
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.attention.contract import is_rounded

_MOST_TOKENS = 40
"""Largest number of a batch's query tokens that are checked one by one."""


def step_violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the layer's constants, that only new tokens' slots are written, and outputs' range."""
    attention: AttentionInputs = call.facts.attention
    yield from _constant_violations(call["constants"], outputs)
    if outputs["returned"] is not True:
        yield Violation("returned", "is not the buffer that was given")
    if outputs["rest of output kept"] is not True:
        yield Violation("output", "is written where no row has a token")
    profiling = call["step"]["attn_metadata"] is None
    before = attention.cache_words(call.facts.before[CACHE])
    steps = [] if profiling else [attention]
    yield from written_violations(steps, outputs["kv_cache"], before, call.facts.pattern)
    if not profiling:
        window, step = call.facts.params["window"], call["step"]
        wide = step["output"].reshape(step["query"].shape)
        if is_rounded(attention.batch, attention.shape, window, wide):
            yield Violation("output", f"in {wide.dtype} is rounded to {attention.shape.dtype}")
        yield from range_violations(attention, outputs["output"], window)


def _constant_violations(constants: dict[str, Any], outputs: Outputs) -> Iterator[Violation]:
    """Check the attributes that follow from the arguments of the class."""
    window = constants["sliding_window"]
    expected = {
        "num_queries_per_kv": constants["num_heads"] // constants["num_kv_heads"],
        "sliding_window": (-1, -1) if window is None else (window - 1, 0),
        "logits_soft_cap": constants["logits_soft_cap"] or 0,
        "scale": constants["scale"],
    }
    for name, value in expected.items():
        if outputs[name] != value:
            yield Violation(name, "does not follow from the arguments of the class")


def written_violations(
    steps: list[AttentionInputs], words: torch.Tensor, before: torch.Tensor, pattern: int
) -> Iterator[Violation]:
    """Check that new tokens are written to their slots and that all else is unchanged."""
    expected = before.clone(memory_format=torch.contiguous_format)
    flat = expected.view(2, -1, *expected.shape[3:])
    new: set[int] = set()
    for attention in steps:
        slots = _slots(attention, pattern)
        new.update(slots.tolist())
        for half, written in enumerate(new_words(attention)):
            flat[half, torch.from_numpy(slots)] = torch.from_numpy(written).to(flat.device)
    wrong = words != expected
    if wrong.any():
        _, block, offset = wrong.nonzero()[0, :3].tolist()
        own = block * words.shape[2] + offset in new
        text = "has not a new token's key or value at its slot" if own else _UNTOUCHED
        yield Violation("kv_cache", text)


_UNTOUCHED = "is written at a slot that no new token has"


def _slots(attention: AttentionInputs, pattern: int) -> np.ndarray:
    """Return the slots of the new tokens; with pattern 1 the blocks have other ids."""
    slots, size = query_token_slots(attention.batch), attention.batch.block_size
    return slots if not pattern else (slots // size ^ 1) * size + slots % size


def new_words(attention: AttentionInputs) -> Iterator[np.ndarray]:
    """Yield (T, Hkv, D) keys, then values, of the new tokens as integers of the cache."""
    shape, slots = attention.shape, query_token_slots(attention.batch)
    pairs = ((attention.keys, shape.k_scale), (attention.values, shape.v_scale))
    for content, scale in pairs:
        new = content.reshape(-1, *content.shape[2:])[slots]
        yield as_words(new, shape.cache_dtype, scale)


def range_violations(
    attention: AttentionInputs, output: torch.Tensor, window: int
) -> Iterator[Violation]:
    """Check that outputs are between the least and the greatest value of their token's keys."""
    shape = attention.shape
    attended = output.detach().cpu().float().numpy()
    if not np.isfinite(attended).all():
        yield Violation("output", "is not finite")
        return
    slack = 8 * TOLERANCES[shape.dtype]
    held = _held(attention)
    for token, (positions, slots) in enumerate(_visible(attention, window)):
        if not len(positions):
            low = high = np.zeros((shape.num_kv_heads, shape.head_size), np.float32)
        else:
            values = held[slots]
            low, high = values.min(axis=0), values.max(axis=0)
        got = attended[token].reshape(shape.num_kv_heads, -1, shape.head_size)
        room = slack * np.sqrt((np.maximum(abs(low), abs(high)) ** 2).sum(-1, keepdims=True))
        room = np.maximum(room, 1e-6)[:, None]
        if (got < low[:, None] - room).any() or (got > high[:, None] + room).any():
            few = len(positions) <= 1
            text = "is not the one value that it sees" if few else "leaves its values' range"
            yield Violation("output", text)
            return


def _held(attention: AttentionInputs) -> np.ndarray:
    """Return (slots, Hkv, D) float32 values as they are read from the cache."""
    shape = attention.shape
    words = torch.from_numpy(as_words(attention.values, shape.cache_dtype, shape.v_scale))
    quantised = shape.cache_dtype.itemsize == 1
    floats = words.view(torch.float8_e4m3fn if quantised else shape.dtype).float()
    values: np.ndarray = (floats * shape.v_scale if quantised else floats).numpy()
    return values.reshape(-1, *values.shape[2:])


def _visible(attention: AttentionInputs, window: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield positions and slots of the keys that each of the first query tokens attends to."""
    batch = attention.batch
    left = _MOST_TOKENS
    for blocks, computed, query in zip(
        batch.blocks, batch.computed_lens, batch.query_lens, strict=True
    ):
        for position in range(computed, computed + query):
            left -= 1
            if left < 0:
                return
            first = max(0, position - window + 1) if window else 0
            positions = np.arange(first, position + 1)
            ids = np.array(blocks, np.int64)[positions // batch.block_size]
            yield positions, ids * batch.block_size + positions % batch.block_size
