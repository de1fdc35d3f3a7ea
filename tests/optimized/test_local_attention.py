"""Tests of make_local_attention_virtual_batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attnproof import optimized
from attnproof.reference import MetadataError

NAME = "make_local_attention_virtual_batches"


def test_worked_example(build, agree):
    md = build([4, 10, 5], [6, 17, 9], width=10)
    md.block_table_tensor = torch.arange(30, dtype=torch.int32).reshape(3, 10)
    virtual = agree(NAME, 4, md, 2)
    assert virtual.query_start_loc.tolist() == [0, 2, 4, 5, 9, 13, 14, 18, 19]
    assert virtual.seq_lens.tolist() == [4, 2, 4, 4, 4, 1, 4, 1]
    assert virtual.num_computed_tokens_cpu.tolist() == [2, 0, 3, 0, 0, 0, 0, 0]
    assert virtual.block_table_tensor.flatten().tolist() == [
        *(0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 22, 23, 24, 25)
    ]


def test_no_requests(build, agree):
    virtual = agree(NAME, 8, build([], []), 2)
    assert virtual.block_table_tensor.shape == (0, 4)
    agree(NAME, 8, build([], [], width=0), 2)


@pytest.mark.parametrize("seq_len", [0, 1, 7, 8, 9, 16])
def test_padded_rows(build, agree, seq_len):
    agree(NAME, 8, build([1, 0, 0], [5, seq_len, 0]), 4)


@pytest.mark.parametrize("query_len", [1, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("computed", [0, 1, 7, 8, 9])
def test_edges_of_chunks(build, agree, query_len, computed):
    agree(NAME, 8, build([query_len], [query_len + computed]), 2)


def test_table_narrower_than_a_chunk(build, agree):
    agree(NAME, 64, build([5, 3], [9, 70], width=3), 4)
    agree(NAME, 8193 * 2, build([5], [9], width=2), 1)


def test_ids_near_the_end_of_int32(build, agree):
    agree(NAME, 8, build([5, 3], [19, 30], first_block=2**31 - 40), 4)


def test_int64_block_table(build, agree):
    md = build([5, 3], [19, 30])
    md.block_table_tensor = md.block_table_tensor.to(torch.int64) + 2**40
    agree(NAME, 8, md, 2)


def test_rows_of_a_wider_buffer(build, agree):
    md = build([5, 3], [19, 30], width=15)
    buffer = torch.full((4, 40), -9, dtype=torch.int32)
    buffer[:2, :15] = md.block_table_tensor
    md.block_table_tensor = buffer[:2, :15]
    agree(NAME, 8, md, 2)
    md.block_table_tensor = buffer[:1, :15].expand(2, 15)
    agree(NAME, 8, md, 2)


def test_optional_fields(build, agree):
    md = build([5, 3], [19, 30], causal=False, encoder_seq_lens=np.array([4, 6]))
    md.logits_indices_padded, md.num_logits_indices = torch.tensor([4, 7]), 2
    virtual = agree(NAME, 8, md, 2)
    assert virtual.causal is True
    assert virtual.encoder_seq_lens.tolist() == [4, 4, 6]


@pytest.mark.parametrize("wide", ["query_start_loc", "seq_lens", "seq_lens_cpu"])
def test_mixed_dtypes_are_kept(build, agree, wide):
    md = build([3, 4], [5, 6])
    setattr(md, wide, getattr(md, wide).to(torch.int64))
    assert getattr(agree(NAME, 4, md, 2), wide).dtype is torch.int64


@pytest.mark.parametrize(
    ("chunk", "block_size"), [(8, 0), (0, 2), (7, 2), (-8, 2), (8, -2), (8.0, 2), (8, True)]
)
def test_malformed_sizes_are_errors(build, agree, chunk, block_size):
    error = agree(NAME, chunk, build([3], [4]), block_size)
    assert isinstance(error, (MetadataError, TypeError))


@pytest.mark.parametrize(
    "change",
    [
        {"query_start_loc_cpu": torch.tensor([0, 4, 3], dtype=torch.int32)},
        {"query_start_loc_cpu": torch.tensor([1, 4, 7], dtype=torch.int32)},
        {"seq_lens_cpu": torch.tensor([2, 9], dtype=torch.int32)},
        {"seq_lens_cpu": torch.tensor([3.0, 9.0])},
        {"block_table_tensor": torch.empty((2, 0), dtype=torch.int32)},
        {"dcp_local_seq_lens": torch.tensor([3, 9], dtype=torch.int32)},
        {"logits_indices_padded": torch.tensor([4, 7])},
        {"encoder_seq_lens": np.array([1, 2, 3])},
        {"num_reqs": 3},
    ],
)
def test_malformed_batches(build, agree, change):
    md = build([3, 4], [5, 9])
    for field, value in change.items():
        setattr(md, field, value)
    error = agree(NAME, 4, md, 2)
    assert isinstance(error, MetadataError)
    md.dcp_local_seq_lens = torch.zeros(2, dtype=torch.int32)
    md.block_table_tensor = torch.empty((2, 0), dtype=torch.int32)
    agree(NAME, 4, md, 2)


def test_maxima_are_python_ints(build):
    virtual = optimized.make_local_attention_virtual_batches(4, build([3], [5]), 2)
    assert type(virtual.max_query_len) is type(virtual.max_seq_len) is int


def test_twins_and_mirrors_have_their_own_storage(build):
    virtual = optimized.make_local_attention_virtual_batches(4, build([3], [5]), 2)
    virtual.seq_lens.fill_(99)
    virtual.query_start_loc.fill_(99)
    assert virtual.seq_lens_cpu.tolist() == [4, 1]
    assert virtual.query_start_loc_cpu.tolist() == [0, 2, 3]
