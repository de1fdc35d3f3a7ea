"""Tests of PersistentBatch: both packages take the same random steps, equal after each."""

from __future__ import annotations

import inspect
from dataclasses import fields

import numpy as np
import pytest
import torch

from attnproof import optimized, reference

SIZES = (5, 40, 4)


class Pair:
    """A batch of each package; every call is made on both."""

    def __init__(self, *sizes, device="cpu"):
        self.batches = [
            package.PersistentBatch(*sizes, device) for package in (reference, optimized)
        ]

    def __call__(self, method, *arguments):
        expected, got = [_outcome(getattr(b, method), *arguments) for b in self.batches]
        if isinstance(expected, Exception):
            assert type(got) is type(expected)
            assert str(got) == str(expected)
        elif method.startswith("build"):
            same_metadata(expected, got, self.batches[0].block_size)
        else:
            assert type(got) is type(expected)
            assert got == expected, method
        theirs, ours = self.batches
        assert ours.req_ids == theirs.req_ids
        assert ours.num_reqs == theirs.num_reqs
        assert ours.slot_mapping.tolist() == theirs.slot_mapping.tolist()
        for row, req_id in enumerate(theirs.req_ids):
            if req_id is not None:
                assert _row(ours, row) == _row(theirs, row)
        return got


def _outcome(function, *arguments):
    try:
        return function(*arguments)
    except (ValueError, TypeError) as error:
        return error


def _row(batch, row):
    held = int(batch.num_blocks[row])
    return int(batch.num_computed_tokens[row]), batch.block_table[row, :held].tolist()


def same_metadata(expected, got, block_size):
    """Require equal fields, of the block table only the blocks of the sequences."""
    for field in fields(expected):
        right, value = getattr(expected, field.name), getattr(got, field.name)
        assert type(value) is type(right), field.name
        if field.name == "block_table_tensor":
            assert value.shape == right.shape
            for row, seq_len in enumerate(expected.seq_lens_cpu.tolist()):
                live = -(-seq_len // block_size)
                assert value[row, :live].tolist() == right[row, :live].tolist()
        elif isinstance(right, torch.Tensor):
            assert (value.dtype, value.device) == (right.dtype, right.device), field.name
            assert value.tolist() == right.tolist(), field.name
        else:
            assert value == right, field.name


def test_methods_and_parameters_are_those_of_the_reference():
    theirs = inspect.getmembers(reference.PersistentBatch, inspect.isfunction)
    for name, function in theirs:
        if name == "__init__" or not name.startswith("_"):
            ours = getattr(optimized.PersistentBatch, name)
            assert inspect.signature(ours) == inspect.signature(function), name
    assert isinstance(optimized.PersistentBatch(1, 1, 1, 1), reference.InputBatch)


def test_a_mapping_that_is_not_a_dict():
    from collections import ChainMap

    pair = Pair(*SIZES, 4)
    pair("add_request", "a", [3])
    pair("build", ChainMap({"a": 2}))
    pair("advance", ChainMap({"a": 2}))


@pytest.mark.parametrize("tokens", [True, np.int64(1), 1.0, "1", None, 2**70])
def test_malformed_token_counts(tokens):
    pair = Pair(*SIZES, 4)
    pair("add_request", "a", [3])
    for method in ("build", "advance"):
        assert isinstance(pair(method, {"a": tokens}), (ValueError, TypeError))


def test_memory_of_a_step_starts_at_multiples_of_16_bytes():
    batch = optimized.PersistentBatch(5, 8, 3, 4)
    batch.add_request("a", [1])
    metadata = batch.build({"a": 1}, 5)
    for name in ("query_start_loc", "seq_lens", "block_table_tensor"):
        tensor = getattr(metadata, name)
        offset = tensor.storage_offset() * tensor.element_size()
        assert offset % 16 == 0, name


def test_more_tokens_than_one_tile():
    pair = Pair(3, 2000, 100, 16)
    pair("add_request", "a", list(range(100)), 5)
    pair("add_request", "b", [7])
    pair("add_request", "c", list(range(300, 350)), 1)
    pair("build", {"a": 1200, "b": 0, "c": 700}, 3, 1999)
