"""Generated queries and caches: numbers in written slots, NaN in all others."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.layers.attention import (
    CACHES,
    MAGNITUDES,
    SIMPLEST_LAYER,
    AttentionInputs,
    Shape,
    num_blocks,
    with_dense_block_ids,
)
from attnproof.harness.cases.memory.paged_cache import LAYOUTS
from attnproof.harness.model.case import Case
from attnproof.harness.operations.attention.prepared import (
    LAYER,
    PreparedAttention,
    capped,
    shared_batch,
)

BATCH = make_batch([2, 1], [5, 9], 4, order="shuffled", first=HIGHEST_BLOCK - 9)


def prepared(pattern=0, *, one_each=False, batch=BATCH, **params):
    return PreparedAttention(
        Case("paged_attention", batch, LAYER | params), pattern, "cpu", one_each=one_each
    )


def gathered(made, half, row):
    """Return the cache's content at the blocks of a row, (blocks * B, Hkv, D)."""
    length = made.arena.tensors["seq_lens"][row]
    blocks = made.arena.tensors["block_table"][row][: -(-int(length) // made.batch.block_size)]
    return (
        made.cache[half]
        .view(torch.uint8 if made.cache.itemsize == 1 else made.cache.dtype)[blocks.long()]
        .flatten(0, 1)
    )


def test_dense_block_ids_keep_their_order():
    batch = with_dense_block_ids(BATCH)
    assert num_blocks(batch) <= 10
    order = np.argsort(np.concatenate(BATCH.blocks))
    assert (np.argsort(np.concatenate(batch.blocks)) == order).all()


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_exactly_the_positions_of_a_sequence_hold_finite_numbers(cache, magnitude):
    made = prepared(cache=cache, magnitude=magnitude)
    for row, length in enumerate((7, 10)):
        for half in (0, 1):
            held = gathered(made, half, row)
            if cache != "auto":
                held = held.view(torch.float8_e4m3fn)
            finite = torch.isfinite(held.float()).all(dim=-1).all(dim=-1)
            assert finite.tolist() == [place < length for place in range(len(finite))]


def test_both_patterns_have_the_same_content_in_different_blocks():
    one, other = prepared(0), prepared(1)
    tables = [made.arena.tensors["block_table"][0, 0] for made in (one, other)]
    assert tables[0] != tables[1]
    for half in (0, 1):
        assert torch.equal(gathered(one, half, 1)[:10], gathered(other, half, 1)[:10])


def test_missing_tokens_shorten_sequences_and_not_queries():
    made = prepared(missing=[6, 40])
    assert made.arena.tensors["seq_lens"].tolist() == [1, 0]
    assert made.tokens == 3
    assert made.batch.computed_lens == (-1, -1)


@pytest.mark.parametrize("layout", range(len(LAYOUTS)), ids=LAYOUTS)
def test_a_far_cache_has_the_content_and_the_layout_of_a_near_one(layout):
    layer = {"head_size": 64, "num_kv_heads": BATCH.block_size, "layout": layout}
    near, far = prepared(**layer), prepared(**layer, far=True)
    slots_outside = [made.cache.stride(2) > made.cache.stride(3) for made in (near, far)]
    assert slots_outside[0] == slots_outside[1]
    assert far.cache.stride(1) * int(far.arena.tensors["block_table"].max()) > 2**31
    for row in (0, 1):
        length = int(near.arena.tensors["seq_lens"][row])
        assert torch.equal(gathered(near, 1, row)[:length], gathered(far, 1, row)[:length])


def test_capped_batches_are_consistent():
    batch = capped(make_batch([30, 1, 5], [100, 3, 0], 8), queries=4, computed=20, requests=2)
    assert (batch.query_lens, batch.computed_lens) == ((4, 1), (20, 3))
    assert [len(blocks) for blocks in batch.blocks] == [3, 1]


def test_no_row_of_a_shared_batch_repeats_a_block():
    batch = shared_batch([1] * 40, [900 + 10 * row for row in range(40)], 16)
    assert all(
        len(set(row)) == len(row) == -(-(901 + 10 * r) // 16) for r, row in enumerate(batch.blocks)
    )
    assert num_blocks(with_dense_block_ids(batch)) < 2 * 85


def test_outputs_of_every_dtype_are_initially_nan():
    for name, dtype in (
        ("", torch.bfloat16),
        ("float32", torch.float32),
        ("float64", torch.float64),
    ):
        made = prepared(out=name, dtype="bfloat16")
        assert made.out.dtype == dtype
        assert bool(made.out.isnan().all())


def test_new_keys_equal_the_cache_s_content_at_their_slots():
    shape = Shape.of(SIMPLEST_LAYER)
    batch = with_dense_block_ids(BATCH)
    attention = AttentionInputs(batch, shape, "all")
    pieces = {piece.name: piece for piece in attention.pieces(0)}
    assert pieces["key"].values.shape == (3, 1, 32)
