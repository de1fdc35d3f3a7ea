"""Outputs, invariants and consumer of `paged_attention` and `decode_attention`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from attnproof.harness.cases.layers.attention import OUT, AttentionInputs, Shape
from attnproof.harness.cases.layers.tolerance import TOLERANCES, rounding_near_0
from attnproof.harness.consumer.attention import attention_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.timing import Work
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.attention.prepared import PreparedAttention

_MANY_KEYS, _MANY_ELEMENTS = 4, 64
"""Smallest numbers of keys in a sum, and of elements, that `is_rounded` judges."""
_HULL_TOKENS = 64
"""Number of first tokens, and of last tokens, whose convex hull is checked."""


def for_reference(call: Call) -> None:
    """Replace `out` by a float64 tensor in separate memory, for the reference."""
    out = call[OUT]
    call.replace(OUT, torch.full(out.shape, torch.nan, dtype=torch.float64, device=out.device))
    call.facts = replace(call.facts, exact=True)


def outputs(call: Call, result: Any) -> Outputs:
    """Return the rows of the requests' tokens, and True if all other rows are unchanged."""
    prepared: PreparedAttention = call.facts.prepared
    out = call[OUT]
    live, others = out[: prepared.tokens], out[prepared.tokens :]
    if call.facts.exact:
        untouched = bool(others.isnan().all())
    else:
        words = prepared.before.dtype
        untouched = torch.equal(others.view(words), prepared.before[prepared.tokens :])
        # A wider result must meet the tolerance of the queries' dtype.
        live = live.to(prepared.shape.dtype) if live.dtype != prepared.shape.dtype else live
    return {"result": result, OUT: live, "untouched": untouched}


def work(call: Call, _result: Any) -> Work:
    """Return the bytes of queries, results, and visible keys and values; two products a key."""
    prepared: PreparedAttention = call.facts.prepared
    shape, window = prepared.shape, prepared.sliding_window or 2**62
    keys = products = 0
    for queries, computed in zip(
        prepared.batch.query_lens, prepared.batch.computed_lens, strict=True
    ):
        seen = [max(0, min(window, computed + place + 1)) for place in range(queries)]
        products += sum(seen)
        first = max(0, computed - window + 1)
        keys += max(0, computed + queries - first) if queries else 0
    row = shape.num_heads * shape.head_size
    rows = prepared.tokens * row * (shape.dtype.itemsize + call[OUT].itemsize)
    held = 2 * keys * shape.num_kv_heads * shape.head_size * prepared.cache.itemsize
    return Work(bytes=rows + held, flops=4 * products * row)


def invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that outputs are finite, in live rows only and in the range of the attended values."""
    out, prepared = outputs[OUT], call.facts.prepared
    if outputs["result"] is not None:
        yield Violation("result", "returns something")
    if not outputs["untouched"]:
        yield Violation("untouched", "a row that is no query's was written")
    if not bool(torch.isfinite(out.double()).all()):
        yield Violation(OUT, "is not finite")
        return
    # With a larger scale one key can outweigh all others: its value is representable.
    usual = abs(prepared.scale) <= 1
    if usual and is_rounded(prepared.batch, prepared.shape, prepared.params["window"], call[OUT]):
        yield Violation(OUT, f"in {prepared.dtype} is rounded to {prepared.shape.dtype}")
    tolerance = 8 * TOLERANCES[prepared.shape.dtype]
    rounding = rounding_near_0(prepared.shape.dtype)
    for token, values in _visible_values(call):
        got = out[token].double()
        heads = values.repeat_interleave(got.shape[0] // values.shape[1], dim=1)
        if not len(heads):
            if bool(got.any()):
                yield Violation(OUT, f"of token {token}, which attends to no key, is not zero")
                return
            continue
        room = tolerance * heads.abs().amax(dim=(0, 2))[:, None] + rounding
        low, high = heads.amin(0) - room, heads.amax(0) + room
        if bool(((got < low) | (got > high)).any()):
            yield Violation(OUT, f"of token {token} is outside the range of the attended values")
            return


def is_rounded(batch: Batch, shape: Shape, window: int, out: torch.Tensor) -> bool:
    """True if a result wider than the queries' dtype was rounded to that dtype.

    `out` has at least one row for each token. A result with few sums over several keys, 0 apart,
    counts as not rounded: such sums can be representable by chance.
    """
    if out.dtype == shape.dtype or shape.magnitude != "normal" or 0 < window < _MANY_KEYS:
        return False
    several = [
        computed + place + 1 >= _MANY_KEYS
        for queries, computed in zip(batch.query_lens, batch.computed_lens, strict=True)
        for place in range(queries)
    ]
    sums = out[: batch.num_tokens][torch.tensor(several, dtype=torch.bool)]
    sums = sums[sums != 0]  # a large scale of an fp8 cache makes all values 0
    rounded = sums.to(shape.dtype).to(sums.dtype)
    return sums.numel() >= _MANY_ELEMENTS and torch.equal(rounded, sums)


def consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare with attention computed from the batch's numbers, without the reference."""
    prepared: PreparedAttention = call.facts.prepared
    yield from attention_violations(
        AttentionInputs(prepared.batch, prepared.shape, "all"),
        prepared.query,
        outputs[OUT],
        OUT,
        scale=prepared.scale,
        window=prepared.params["window"],
        soft_cap=prepared.params["soft_cap"],
    )


def _visible_values(call: Call) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield each checked token with the (n, Hkv, D) float64 values of its visible keys."""
    prepared: PreparedAttention = call.facts.prepared
    size, window = prepared.batch.block_size, prepared.sliding_window or 2**62
    cache = prepared.cache[1]
    if cache.itemsize == 1:
        cache = cache.view(torch.uint8)
    token = 0
    for row, (queries, computed) in enumerate(
        zip(prepared.batch.query_lens, prepared.batch.computed_lens, strict=True)
    ):
        for place in range(queries):
            if token < _HULL_TOKENS or token >= prepared.tokens - _HULL_TOKENS:
                position = computed + place
                keys = torch.arange(max(0, position - window + 1), max(0, position + 1))
                keys = keys.to(cache.device)
                blocks = prepared.arena.tensors["block_table"][row][keys // size].long()
                held = cache[blocks, keys % size]
                if cache.dtype == torch.uint8:
                    held = held.view(torch.float8_e4m3fn)
                yield (
                    token,
                    held.double() * (prepared.shape.v_scale if cache.itemsize == 1 else 1.0),
                )
            token += 1
