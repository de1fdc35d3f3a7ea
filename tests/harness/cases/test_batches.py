"""Drawn batches are consistent and cover the kinds of batches that engines make."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings

from attnproof.harness.cases.batches.strategies import (
    BLOCK_SIZES,
    HIGHEST_BLOCK,
    batches,
    block_lists,
    make_batch,
)
from attnproof.harness.cases.batches.subclass import LABEL, Subclassed
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.reference import validate

QUICK = settings(database=None, deadline=None, suppress_health_check=list(HealthCheck))


def pairs(batch):
    return zip(batch.query_lens, batch.computed_lens, strict=True)


def shares_blocks(batch):
    blocks = [block for row in batch.blocks for block in row]
    return len(set(blocks)) < len(blocks)


@settings(QUICK, max_examples=150)
@given(batches(extras=True))
def test_drawn_batches_are_valid_metadata(batch):
    metadata, arena = lay_out(batch)
    validate(metadata, batch.block_size)
    assert arena.unexpected_writes() == []
    for query_len, computed, blocks in zip(
        batch.query_lens, batch.computed_lens, batch.blocks, strict=True
    ):
        assert len(blocks) == -(-(query_len + computed) // batch.block_size)


@settings(QUICK, max_examples=60)
@given(batches(extras=True))
def test_patterns_differ_in_stale_places_and_block_ids(batch):
    one, _ = lay_out(batch, 0)
    other, _ = lay_out(batch, 1)
    assert torch.equal(one.query_start_loc, other.query_start_loc)
    assert torch.equal(one.seq_lens, other.seq_lens)
    validate(other, batch.block_size)
    for row, blocks in enumerate(batch.blocks):
        live = one.block_table_tensor[row, : len(blocks)]
        assert live.tolist() == list(blocks)
        assert torch.equal(live ^ 1, other.block_table_tensor[row, : len(blocks)])
        stale = one.block_table_tensor[row, len(blocks) :]
        assert not (stale == other.block_table_tensor[row, len(blocks) :]).any()


@pytest.mark.parametrize(
    ("what", "holds"),
    [
        ("no requests", lambda b: not b.query_lens),
        ("one request", lambda b: len(b.query_lens) == 1),
        ("decode only", lambda b: len(b.query_lens) > 2 and set(b.query_lens) == {1}),
        ("prefill only", lambda b: any(b.query_lens) and not any(b.computed_lens)),
        ("mixed", lambda b: min(b.query_lens, default=0) == 1 and max(b.query_lens) > 20),
        ("continued chunk", lambda b: any(q > 1 < c for q, c in pairs(b))),
        ("spec decode", lambda b: len(b.query_lens) > 2 and set(b.query_lens) == {2}),
        ("zero-length row inside", lambda b: 0 in b.query_lens[:-1]),
        ("padded rows", lambda b: b.padded_requests),
        ("padded tokens", lambda b: b.padded_tokens),
        ("table of exact width", lambda b: b.blocks and not b.spare_columns),
        ("shared blocks", shares_blocks),
        ("highest ids", lambda b: any(HIGHEST_BLOCK in row for row in b.blocks)),
        ("int64", lambda b: b.dtype == "int64"),
        ("strided", lambda b: b.strided),
        *((f"block size {n}", lambda b, n=n: b.block_size == n) for n in BLOCK_SIZES),
    ],
)
def test_drawn_batches_cover(what, holds):
    unshrunk = settings(QUICK, max_examples=3000, phases=[Phase.generate])
    assert holds(find(batches(), lambda batch: bool(holds(batch)), settings=unshrunk))


def test_subclassed_metadata_has_a_field_of_each_kind_of_declaration():
    batch = make_batch([2, 1], [3, 0], 4, padded_requests=1, spare_slots=2, subclassed=True)
    metadata, _ = lay_out(batch)
    assert type(metadata) is Subclassed
    validate(metadata, batch.block_size)
    assert metadata.request_tags.shape == (3, 2)
    assert (
        len({*metadata.request_tags.flatten().tolist(), *metadata.request_tags_cpu.tolist()}) == 9
    )
    assert metadata.token_tags[3:].tolist() == [STALE_PATTERNS[0]] * 2
    assert metadata.label == LABEL
    other, _ = lay_out(batch, 1)
    assert other.token_tags[:3].tolist() == metadata.token_tags[:3].tolist()


def test_blocks_are_unique_unless_a_computed_prefix_is_shared():
    assert block_lists([5, 3], [0, 0], 2) == ((0, 1, 2), (3, 4))
    assert block_lists([5, 3], [0, 0], 2, order="descending") == ((4, 3, 2), (1, 0))
    assert block_lists([5, 3], [0, 0], 2, order="with one elsewhere") == ((0, 5, 2), (3, 4))
    assert block_lists([5, 3], [0, 0], 2, order="with gaps") == ((0, 1, 3), (4, 6))
    assert block_lists([5, 5], [4, 3], 2, shared=True) == ((0, 1, 2), (0, 4, 5))


def test_slots_follow_from_blocks():
    batch = make_batch([2, 1], [3, 0], 4, order="descending", padded_tokens=1, spare_slots=2)
    metadata, _ = lay_out(batch)
    assert metadata.slot_mapping[:4].tolist() == [2 * 4 + 3, 1 * 4, 0, -1]
    assert len(metadata.slot_mapping) == 6
