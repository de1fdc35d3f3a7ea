"""Tests of paged attention on examples with results that are computed by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from attnproof import reference
from attnproof.reference import MetadataError

NAN = math.nan


def cache(rows, block_size=2, heads=1, dtype=torch.float16):
    """Return a cache of one-element heads from the values of its rows; the rest is NaN."""
    made = torch.full((len(rows), block_size, heads, 1), NAN, dtype=dtype)
    for block, row in enumerate(rows):
        for slot, value in enumerate(row):
            made[block, slot] = value
    return made


def attend(query, keys, values, starts, lens, table, scale=1.0, **more):
    """Return attention over one-element heads in float64; 7 marks elements not written."""
    query = torch.tensor(query, dtype=torch.float16)[..., None]
    out = torch.full(query.shape, 7.0, dtype=torch.float64)
    reference.paged_attention(
        query,
        keys,
        values,
        torch.tensor(starts),
        torch.tensor(lens),
        torch.tensor(table),
        scale,
        max_query_len=max((b - a for a, b in pairwise(starts)), default=0),
        max_seq_len=max(lens, default=0),
        **more,
        out=out,
    )
    return out[..., 0].tolist()


def test_equal_scores_give_the_mean_of_what_is_seen():
    keys, values = cache([[1, 1], [1]]), cache([[2, 4], [9]])
    assert attend([[0.0]] * 3, keys, values, [0, 3], [3], [[0, 1]]) == [[2.0], [3.0], [5.0]]


def test_positions_follow_the_block_table_and_count_from_the_computed_tokens():
    values = cache([[9], [2, 4]])
    assert attend([[0.0]], cache([[1], [1, 1]]), values, [0, 1], [3], [[1, 0]]) == [[5.0]]


def test_window_counts_the_query_itself():
    keys, values = cache([[1, 1], [1, 1]]), cache([[2, 4], [8, 16]])
    for window, expected in ((1, 16.0), (2, 12.0), (4, 7.5), (5, 7.5)):
        got = attend([[0.0]], keys, values, [0, 1], [4], [[0, 1]], sliding_window=window)
        assert got == [[expected]]


def test_scores_are_scaled_and_capped():
    keys, values = cache([[0, 1]]), cache([[0, 1]])
    (plain,) = attend([[2.0]], keys, values, [0, 1], [2], [[0]], 1.5)[0]
    assert plain == pytest.approx(1 / (1 + math.exp(-3)))
    (capped,) = attend([[2.0]], keys, values, [0, 1], [2], [[0]], 1.5, logits_soft_cap=2.0)[0]
    assert capped == pytest.approx(1 / (1 + math.exp(-2 * math.tanh(1.5))))
    (uncapped,) = attend([[2.0]], keys, values, [0, 1], [2], [[0]], 1.5, logits_soft_cap=0)[0]
    assert uncapped == plain


def test_neighbouring_query_heads_share_a_kv_head():
    keys = torch.ones(1, 1, 2, 1, dtype=torch.float16)
    values = torch.tensor([3.0, 5.0], dtype=torch.float16).view(1, 1, 2, 1)
    assert attend([[0.0] * 4], keys, values, [0, 1], [1], [[0]]) == [[3.0, 3.0, 5.0, 5.0]]


def test_no_visible_key_gives_zeros_and_tokens_outside_every_row_are_not_written():
    keys, values = cache([[1]]), cache([[4]])
    got = attend([[0.0]] * 4, keys, values, [0, 2, 3], [1, 0], [[0], [55]])
    assert got == [[0.0], [4.0], [0.0], [7.0]]


@pytest.mark.parametrize("held", [torch.float8_e4m3fn, torch.uint8])
def test_fp8_values_are_multiplied_by_the_scale(held):
    keys = cache([[0, 2]]).to(torch.float8_e4m3fn).view(held)
    values = cache([[0, 3]]).to(torch.float8_e4m3fn).view(held)
    scales = {"k_scale": torch.tensor([0.5]), "v_scale": torch.tensor([2.0])}
    ((got,),) = attend([[1.0]], keys, values, [0, 1], [2], [[0]], **scales)
    assert got == pytest.approx(6 / (1 + math.exp(-1)))


def test_decodes_are_a_batch_of_one_query_each():
    keys, values = cache([[1, 1], [1]]), cache([[2, 4], [9]])
    out = torch.empty(3, 1, 1, dtype=torch.float64)
    reference.decode_attention(
        torch.zeros(3, 1, 1, dtype=torch.float16),
        keys,
        values,
        torch.tensor([2, 0, 1]),
        torch.tensor([[0], [-5], [1]]),
        1.0,
        max_seq_len=2,
        out=out,
    )
    assert out.flatten().tolist() == [3.0, 0.0, 9.0]


def test_a_block_outside_the_cache_is_an_error():
    with pytest.raises(MetadataError, match="block 3"):
        attend([[0.0]], cache([[1]]), cache([[1]]), [0, 1], [1], [[3]])
