"""Tests of compute_causal_conv1d_metadata."""

from __future__ import annotations

import time

import pytest
import torch

from attnproof import optimized, reference
from attnproof.optimized import dispatch
from attnproof.reference import MetadataError

NAME = "compute_causal_conv1d_metadata"


def offsets(query_lens, dtype=torch.int32):
    return torch.tensor([0, *query_lens]).cumsum(0).to(dtype)


def test_worked_example(agree):
    nums_dict, batch_ptr, chunk_ptr = agree(NAME, offsets([5, 16, 0, 9]))
    assert nums_dict[8]["mlist"].tolist() == [0, 1, 1, 3, 3]
    assert nums_dict[8]["batch_ptr"] is batch_ptr
    assert nums_dict[8]["token_chunk_offset_ptr"] is chunk_ptr
    assert type(nums_dict[8]["tot"]) is type(nums_dict[8]["mlist_len"]) is int


@pytest.mark.parametrize("query_lens", [[], [0], [0, 0, 0], [0, 9, 0], [7], [8], [9], [1] * 300])
def test_edges(agree, query_lens):
    agree(NAME, offsets(query_lens))


@pytest.mark.parametrize("programs", [511, 512, 513, 1023, 1024, 1025, 2048, 2049, 40_000])
def test_numbers_of_programs(agree, programs):
    agree(NAME, offsets([8 * programs - 7]))
    agree(NAME, offsets([0, *[3] * programs, 0]))


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([1, 4], dtype=torch.int32),
        torch.tensor([0, 4, 3], dtype=torch.int32),
        torch.tensor([], dtype=torch.int32),
        torch.tensor([[0, 4]]),
        torch.tensor([0.0, 4.0]),
    ],
)
def test_malformed_offsets(agree, given):
    assert isinstance(agree(NAME, given), MetadataError)


def test_offsets_of_another_type(agree):
    assert isinstance(agree(NAME, [0, 4]), TypeError)


@pytest.mark.slow
@pytest.mark.skipif(dispatch.INTERPRETED, reason="the interpreter's speed is meaningless")
def test_large_batches_take_no_loop_per_program(agree):
    """The reference has that loop (K22); both are timed alternately, the fastest runs compared."""
    given = offsets([1000 + row % 100 for row in range(256)])
    agree(NAME, given)
    fastest = dict.fromkeys((reference, optimized), float("inf"))
    for _ in range(7):
        for package in fastest:
            start = time.perf_counter()
            getattr(package, NAME)(given)
            fastest[package] = min(fastest[package], time.perf_counter() - start)
    assert fastest[reference] > 5 * fastest[optimized]
