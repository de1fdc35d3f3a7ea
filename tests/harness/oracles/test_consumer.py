"""The consumer finds wrong keys, positions and slots from the batch's numbers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.consumer.parts import count_violations
from attnproof.harness.consumer.tiny_attention import attention
from attnproof.harness.consumer.visible_keys import Mask, VisibleKeys, differing
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.metadata import metadata_outputs
from attnproof.reference import make_local_attention_virtual_batches

BATCH = make_batch([1, 3, 2], [4, 0, 3], 2)
"""Blocks 0 to 2, 3 and 4, 5 to 7."""


def violations(metadata, batch=BATCH, **options) -> list[Violation]:
    return list(metadata_violations(expected_tokens(batch), metadata_outputs(metadata), **options))


def changed(**tensors: list[int] | list[list[int]] | int) -> list[Violation]:
    """Return the violations of the batch's own metadata with some fields replaced."""
    metadata, _ = lay_out(BATCH)
    values = {
        name: value if isinstance(value, int) else torch.tensor(value, dtype=torch.int32)
        for name, value in tensors.items()
    }
    return violations(replace(metadata, **values))


@given(batches(extras=True))
@settings(deadline=None)
def test_correct_metadata_and_slots_have_no_violation(batch):
    metadata, _ = lay_out(batch)
    assert violations(metadata, batch) == []
    slots = metadata.slot_mapping[: metadata.num_actual_tokens]
    assert list(slot_violations(expected_tokens(batch), slots, "slot_mapping")) == []


@pytest.mark.parametrize(
    ("tensors", "field", "text", "detail"),
    [
        (
            {"seq_lens": [4, 3, 5]},
            "seq_lens",
            "sees too few keys",
            "token 0 of request 0 sees 4 keys, must see 5: not its key at position 4",
        ),
        (
            {"seq_lens": [5, 3, 6], "max_seq_len": 6},
            "seq_lens",
            "sees keys of its own future",
            "token 0 of request 2 sees 5 keys, must see 4: its key at position 4 too",
        ),
        (
            {"seq_lens": [6, 3, 5], "max_seq_len": 6},
            "seq_lens",
            "sees a key that was never written",
            "token 0 of request 0 sees 6 keys, must see 5: its key at position 5 too",
        ),
        (
            {
                "seq_lens": [5, 9, 5],
                "max_seq_len": 9,
                "block_table_tensor": [[0, 1, 2, 0], [3, 4, 0, 0], [5, 6, 7, 0]],
            },
            "seq_lens",
            "sees another request's block",
            "token 0 of request 1 sees 7 keys, must see 1: block 0 of request 0 too",
        ),
        (
            {
                "seq_lens": [5, 9, 5],
                "max_seq_len": 9,
                "block_table_tensor": [[0, 1, 2], [3, 4, 4], [5, 6, 7]],
            },
            "seq_lens",
            "sees keys beyond its block-table row",
            "token 0 of request 1 sees 7 keys, must see 1: a position beyond its block-table row "
            "too",
        ),
        (
            {"block_table_tensor": [[0, 1, 2], [5, 4, 0], [5, 6, 7]]},
            "block_table_tensor",
            "sees another request's block",
            "token 0 of request 1 sees block 5 of request 2, must see its key at position 0",
        ),
        (
            {"block_table_tensor": [[0, 1, 9], [3, 4, 0], [5, 6, 7]]},
            "block_table_tensor",
            "sees a block that no request has",
            "token 0 of request 0 sees block 9 of no request, must see its key at position 4",
        ),
        (
            {"block_table_tensor": [[0, 0, 2], [3, 4, 0], [5, 6, 7]]},
            "block_table_tensor",
            "sees a key twice",
            "token 0 of request 0 sees its key at position 0, must see its key at position 2",
        ),
        (
            {"query_start_loc": [0, 1, 5, 6]},
            "query_start_loc",
            "puts two requests into one row",
            "token 0 of request 2 is in one row with token 2 of request 1",
        ),
        (
            {"query_start_loc": [0, 1, 4, 5]},
            "query_start_loc",
            "leaves tokens without a row",
            "token 1 of request 2 is in no row",
        ),
        (
            {"query_start_loc": [0, 1, 4, 7]},
            "query_start_loc",
            "gives rows to more tokens than there are",
            "7 tokens are in rows, expected 6",
        ),
        (
            {"query_start_loc": [0, 1, 6]},
            "query_start_loc",
            "has other rows than the lengths and the block table",
            "",
        ),
        (
            {"max_query_len": 2},
            "max_query_len",
            "leaves tokens uncomputed",
            "token 2 of request 1 is not computed: max_query_len is 2",
        ),
        (
            {"max_seq_len": 4},
            "max_seq_len",
            "sees too few keys",
            "token 0 of request 0 sees 4 keys, must see 5: not its key at position 4",
        ),
        (
            {"num_computed_tokens_cpu": [4, 1, 3]},
            "num_computed_tokens_cpu",
            "puts tokens at other positions",
            "token 0 of request 1 is put at position 1, must be at 0",
        ),
        (
            {"seq_lens_cpu": [5, 2, 5]},
            "seq_lens_cpu",
            "sees too few keys",
            "token 0 of request 1 sees 0 keys, must see 1: not its key at position 0",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "token" not in value else "",
)
def test_a_wrong_field_is_named_with_the_token_that_shows_it(tensors, field, text, detail):
    assert changed(**tensors) == [Violation(field, text, detail)]


def test_the_order_of_the_keys_does_not_matter():
    batch = make_batch([1], [5], 2)
    metadata, _ = lay_out(batch)
    table = torch.tensor([[1, 0, 2]], dtype=torch.int32)
    assert violations(replace(metadata, block_table_tensor=table), batch) == []


def test_without_a_causal_mask_a_token_must_see_all_of_its_request():
    batch = make_batch([2, 1], [3, 2], 2, causal=False)
    metadata, _ = lay_out(batch)
    assert violations(metadata, batch) == []
    (violation,) = violations(replace(metadata, causal=True), batch)
    assert violation.detail.startswith("token 0 of request 0 sees 4 keys, must see 5")


def virtual(batch, chunk: int):
    metadata, _ = lay_out(batch)
    return make_local_attention_virtual_batches(chunk, metadata, batch.block_size)


def test_tokens_of_virtual_batches_see_their_chunk():
    batch = make_batch([3, 9000], [4, 0], 2)
    assert violations(virtual(batch, 4), batch, chunk=4) == []


def test_without_virtual_batches_a_token_sees_another_chunk():
    batch = make_batch([3], [4], 2)
    metadata, _ = lay_out(batch)
    (violation,) = violations(metadata, batch, chunk=4)
    assert violation.text == "sees keys of another chunk"
    assert violation.detail == (
        "token 0 of request 0 sees 5 keys, must see 1: its key at position 0 too"
    )


@pytest.mark.parametrize(
    ("slots", "text", "detail"),
    [
        ([4, 6, 7, 8, 13, 14, 3], "writes padding to the cache", "entry 6 is padding"),
        ([4, 6, 7, 8, 13], "has too few entries", "token 1 of request 2 has no entry"),
        ([-1, 6, 7, 8, 13, 14], "leaves a token unwritten", "token 0 of request 0 is not written"),
        ([3, 6, 7, 8, 13, 14], "overwrites a cached key of its own request", "position 3"),
        ([4, 7, 6, 8, 13, 14], "writes a token where it is not read", "position 1"),
        ([4, 6, 7, 11, 13, 14], "overwrites another request's cache", "block 5 of request 2"),
        ([4, 6, 7, 8, 99, 14], "writes into a block that no request has", "in block 49"),
    ],
)
def test_a_token_must_be_written_to_the_slot_that_is_read(slots, text, detail):
    (violation,) = slot_violations(expected_tokens(BATCH), slots, "slots")
    assert (violation.field, violation.text) == ("slots", text)
    assert detail in violation.detail


def test_a_token_without_a_slot_may_not_be_written():
    unwritten = np.array([True, *[False] * 5])
    slots = [4, 6, 7, 8, 13, 14]
    (violation,) = slot_violations(expected_tokens(BATCH), slots, "slots", unwritten=unwritten)
    assert violation.text == "writes a token that has no slot"


@pytest.mark.parametrize(
    ("counts", "threshold", "uniform", "text"),
    [
        ((1, 2, 1, 5), 1, False, ""),
        ((2, 1, 4, 2), 3, False, ""),
        ((2, 1, 4, 2), 1, False, "takes a prefill for a decode"),
        ((2, 1, 4, 2), 3, True, "takes rows of several lengths for uniform ones"),
        ((1, 2, 1, 4), 1, False, "leaves tokens in neither part"),
        ((1, 2, 2, 4), 1, False, "leaves tokens without a row"),
        ((1, 2, 0, 6), 1, False, "gives rows to more tokens than there are"),
        ((1, 1, 1, 5), 1, False, "leaves tokens without a row"),
    ],
)
def test_counts_must_split_the_batch_into_decodes_and_prefills(counts, threshold, uniform, text):
    found = list(count_violations(expected_tokens(BATCH), counts, threshold, uniform=uniform))
    assert [violation.text for violation in found] == ([text] if text else [])


def _wrong(visible: VisibleKeys) -> Iterator[VisibleKeys]:
    """Yield copies of `visible` with one stop or one block id changed."""
    for token in range(len(visible.rows)):
        longer, shorter = visible.stop.copy(), visible.stop.copy()
        longer[token] += 1
        shorter[token] -= 1
        yield visible._replace(stop=longer)
        yield visible._replace(stop=shorter)
    for place in np.ndindex(visible.table.shape):
        table = visible.table.copy()
        table[place] += 1
        yield visible._replace(table=table)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=3),
    st.sampled_from((Mask(), Mask(window=3), Mask(chunk=4), Mask(causal=False))),
)
@settings(deadline=None, max_examples=40)
def test_attention_differs_exactly_where_the_slot_sets_differ(requests, mask):
    expected = expected_tokens(make_batch([q for q, _ in requests], [c for _, c in requests], 2))
    tokens = np.arange(len(expected.requests))
    required = expected.visible_keys(tokens, mask)
    right = attention(required, tokens, expected.live, expected.block_size)
    assert right is not None
    assert np.isfinite(right).all()
    for visible in _wrong(required):
        given_ = attention(visible, tokens, expected.live, expected.block_size)
        assert given_ is not None
        differs = ~(np.abs(given_ - right) <= 1e-9).all(1)
        assert np.flatnonzero(differs).tolist() == differing(required, visible).tolist()


def test_attention_over_a_large_batch_is_not_computed():
    expected = expected_tokens(make_batch([100], [0], 16))
    tokens = np.arange(100)
    assert (
        attention(expected.visible_keys(tokens, Mask()), tokens, expected.live, expected.block_size)
        is None
    )


def test_very_many_keys_are_not_listed():
    one = np.zeros(1, np.int64)
    keys = [
        VisibleKeys(one, one, one + 2**27, np.full((1, 2048), block), 2**16) for block in (1, 2)
    ]
    assert differing(*keys).tolist() == []
