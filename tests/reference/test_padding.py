"""Tests of `padded` and `unpadded` of every field, also of a subclass (SPEC.md section 1)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import torch

from attnproof.reference import CommonAttentionMetadata, MetadataError, aligned, validate


@dataclass
class Extended(CommonAttentionMetadata):
    positions: torch.Tensor | None = field(default=None, metadata=aligned("token"))
    is_prefilling: torch.Tensor | None = field(default=None, metadata=aligned("request"))
    req_ids: list[int] | None = field(default=None, metadata=aligned("request", fill=-7))
    windows: np.ndarray | None = field(default=None, metadata=aligned("request"))
    step: tuple[int, ...] = (1, 2, 3)


def extended(plain: CommonAttentionMetadata, **more: Any) -> Extended:
    rows = plain.num_reqs
    values = {
        "positions": torch.arange(100, 100 + plain.num_actual_tokens),
        "is_prefilling": torch.tensor([row % 2 == 0 for row in range(rows)]),
        "req_ids": list(range(40, 40 + rows)),
        "windows": np.arange(rows * 2).reshape(rows, 2),
    }
    return Extended(**vars(plain), **values | more)


@pytest.fixture
def batch(make_metadata):
    return make_metadata(
        [2, 1],
        [5, 4],
        [[3, 4], [5, 6]],
        causal=False,
        logits_indices_padded=torch.tensor([1, 2, 9]),
        num_logits_indices=2,
        encoder_seq_lens=np.array([7, 8], dtype=np.int32),
        dcp_local_seq_lens=torch.tensor([3, 2], dtype=torch.int32),
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and one == other


def test_padding_is_empty_rows_and_tokens_without_a_slot(batch):
    padded = batch.padded(6, 4)
    validate(padded)
    assert padded.query_start_loc.tolist() == padded.query_start_loc_cpu.tolist() == [0, 2, 3, 3, 3]
    assert padded.seq_lens.tolist() == padded.seq_lens_cpu.tolist() == [5, 4, 0, 0]
    assert padded.num_computed_tokens_cpu.tolist() == [3, 3, 0, 0]
    assert padded.block_table_tensor.tolist() == [[3, 4], [5, 6], [0, 0], [0, 0]]
    assert padded.slot_mapping.tolist() == [0, 1, 2, -1, -1, -1]
    assert padded.encoder_seq_lens.tolist() == [7, 8, 0, 0]
    assert padded.dcp_local_seq_lens.tolist() == [3, 2, 0, 0]
    assert (padded.num_reqs, padded.num_actual_tokens) == (4, 6)
    assert (padded.max_query_len, padded.max_seq_len) == (batch.max_query_len, batch.max_seq_len)
    assert padded.causal is False
    assert padded.logits_indices_padded is batch.logits_indices_padded


@pytest.mark.parametrize("more_rows", [0, 1, 3])
@pytest.mark.parametrize("more_tokens", [0, 2])
@pytest.mark.parametrize("make", [lambda plain: plain, extended])
def test_unpadded_restores_every_field(batch, make, more_rows, more_tokens):
    batch = make(batch)
    padded = batch.padded(3 + more_tokens, 2 + more_rows)
    back = padded.unpadded(3, 2)
    assert type(padded) is type(back) is type(batch)
    for one in fields(batch):
        assert same(getattr(back, one.name), getattr(batch, one.name)), one.name


def test_fields_of_a_subclass_are_padded_as_they_declare(batch):
    padded = extended(batch).padded(5, 3)
    assert padded.positions.tolist() == [100, 101, 102, 0, 0]
    assert padded.is_prefilling.tolist() == [True, False, False]
    assert padded.req_ids == [40, 41, -7]
    assert padded.windows.tolist() == [[0, 1], [2, 3], [0, 0]]
    assert padded.step == (1, 2, 3)


def test_fields_that_do_not_grow_are_views(batch):
    padded = batch.padded(6, 2)
    assert padded.seq_lens.data_ptr() == batch.seq_lens.data_ptr()
    assert padded.slot_mapping.data_ptr() != batch.slot_mapping.data_ptr()
    assert padded.unpadded(3, 2).slot_mapping.data_ptr() == padded.slot_mapping.data_ptr()


def test_stale_slots_after_the_tokens_are_not_kept(make_metadata):
    batch = make_metadata([1], [1], slot_mapping=torch.tensor([4, 99, 98]))
    assert batch.padded(3, 1).slot_mapping.tolist() == [4, -1, -1]
    assert batch.padded(1, 1).slot_mapping.tolist() == [4]


def test_an_idle_rank_is_padded(make_metadata):
    padded = make_metadata([], []).padded(3, 2)
    validate(padded)
    assert padded.query_start_loc.tolist() == [0, 0, 0]
    assert padded.block_table_tensor.shape == (2, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda md: md.padded(2, 2), "padded: num_tokens is 2, expected at least 3"),
        (lambda md: md.padded(3, 1), "padded: num_reqs is 1, expected at least 2"),
        (lambda md: md.unpadded(4, 2), "num_actual_tokens is 4, expected at most 3"),
        (lambda md: md.unpadded(3, 3), "num_actual_reqs is 3, expected at most 2"),
        (lambda md: md.unpadded(3, 1), "is 1, expected at least 2: request 1 has 4 tokens"),
        (lambda md: md.unpadded(2, 2), "is 2, expected at least 3, query_start_loc's end"),
        (lambda md: md.unpadded(3, -1), "num_actual_reqs is -1, expected at least 0"),
    ],
)
def test_unpadded_refuses_to_remove_real_rows_and_tokens(batch, call, message):
    with pytest.raises(MetadataError, match=message):
        call(batch)


def test_sizes_are_ints(batch):
    with pytest.raises(TypeError, match="num_tokens is float, expected int"):
        batch.padded(3.0, 2)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"req_ids": [1]}, MetadataError, "req_ids is of length 1, expected length 2"),
        ({"positions": torch.arange(2)}, MetadataError, "expected at least num_actual_tokens = 3"),
        (
            {"windows": np.array(3)},
            MetadataError,
            r"windows is of shape \(\), expected at least 1-D",
        ),
        ({"is_prefilling": "yes"}, TypeError, "is_prefilling is str, expected a tensor"),
    ],
)
def test_fields_of_a_subclass_are_checked(batch, change, error, message):
    with pytest.raises(error, match=message):
        extended(batch, **change).padded(3, 2)


def test_a_subclass_has_no_offsets_of_its_own(batch):
    @dataclass
    class Wrong(CommonAttentionMetadata):
        starts: torch.Tensor | None = field(default=None, metadata=aligned("offsets"))

    with pytest.raises(TypeError, match="starts is aligned with offsets"):
        Wrong(**vars(batch)).padded(3, 2)


def test_every_tensor_of_the_metadata_declares_its_alignment():
    """Without a declaration, slicing and padding would not change a tensor."""
    undeclared = {f.name for f in fields(CommonAttentionMetadata) if "alignment" not in f.metadata}
    assert undeclared == {
        *("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len", "causal"),
        *("logits_indices_padded", "num_logits_indices"),
    }
