"""Tests of the pool of requests' slots (SPEC.md section 15)."""

from __future__ import annotations

import pytest
import torch


def ints(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


@pytest.mark.spec("Example: row 1 of the pool is [5, 6, 7], prefixes [2, 0] of rows [1, 0]")
def test_last_slots(package):
    pool = ints([1, 2, 3], [5, 6, 7], dtype=torch.int32)
    slots = package.get_last_loc(pool, ints(1, 0), ints(2, 0))
    assert slots.tolist() == [6, -1]
    assert slots.dtype == torch.int64
    narrow = package.get_last_loc(pool, ints(1), ints(3, dtype=torch.int32))
    assert (narrow.tolist(), narrow.dtype) == ([7], torch.int32)


def test_a_slot_beyond_32_bits_keeps_its_value(package):
    slots = package.get_last_loc(ints([2**31]), ints(0), ints(1, dtype=torch.int32))
    assert slots.tolist() == [2**31]


@pytest.mark.parametrize(
    ("row", "length", "message"),
    [
        (2, 1, r"req_pool_indices_tensor\[0\] is 2, expected below 2"),
        (-1, 1, r"req_pool_indices_tensor\[0\] is -1, expected at least 0"),
        (0, 4, r"prefix_lens_tensor\[0\] is 4, expected below 4"),
    ],
)
def test_places_outside_the_pool_are_refused(package, row, length, message):
    with pytest.raises(package.MetadataError, match=message):
        package.get_last_loc(ints([1, 2, 3], [5, 6, 7]), ints(row), ints(length))


def write(package, pool, rows, prefixes, lengths, new, pre_lens=None, extend_lens=None):
    pre_lens = [len(prefix) for prefix in prefixes] if pre_lens is None else pre_lens
    if extend_lens is None:
        extend_lens = [end - prefix for end, prefix in zip(lengths, pre_lens, strict=True)]
    lens = (ints(*pre_lens), ints(*lengths), ints(*extend_lens))
    slots = [ints(*prefix) for prefix in prefixes]
    assert package.write_req_to_token_pool(pool, ints(*rows), slots, *lens, ints(*new)) is None
    return pool.tolist()


def empty_pool(rows=2):
    return torch.full((rows, 4), -9, dtype=torch.int32)


@pytest.mark.spec(
    "Example: rows [1, 0], prefixes [8, 9] and none, lengths [3, 1], new slots [4, 5]"
)
def test_rows_of_the_pool(package):
    pool = write(package, empty_pool(3), [1, 0], [[8, 9], []], [3, 1], [4, 5])
    assert pool == [[5, -9, -9, -9], [8, 9, 4, -9], [-9, -9, -9, -9]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": [2, 0]}, r"req_pool_indices\[0\] is 2, expected below 2"),
        ({"rows": [1, 1]}, r"req_pool_indices\[0\] is 1, expected each row once"),
        ({"lengths": [1, 1]}, r"seq_lens\[0\] is 1, expected at least the prefix's length"),
        ({"lengths": [5, 1]}, r"seq_lens\[0\] is 5, expected below 5"),
        ({"extend_lens": [1, 2]}, r"extend_lens\[1\] is 2, expected seq_lens less pre_lens"),
        ({"pre_lens": [1, 0]}, r"prefix_tensors\[0\] is of length 2, expected length 1"),
        ({"new": [4]}, "out_cache_loc is of length 1, expected length 2"),
        ({"new": [4, 2**31]}, "out_cache_loc is 2147483648 at its most, expected slots that"),
    ],
)
def test_malformed_input_is_refused(package, changes, message):
    pool = empty_pool()
    good = {"rows": [1, 0], "prefixes": [[8, 9], []], "lengths": [3, 1], "new": [4, 5]}
    with pytest.raises(package.MetadataError, match=message):
        write(package, pool, **good | changes)
    assert set(pool.flatten().tolist()) == {-9}


@pytest.mark.spec("Example: prefixes [4, 0, 2], lengths [1, 3, 0], sum 4")
def test_positions(package):
    positions, starts = package.compute_position(ints(4, 0, 2), ints(1, 3, 0), 4)
    assert (positions.tolist(), positions.dtype) == ([4, 0, 1, 2], torch.int64)
    assert (starts.tolist(), starts.dtype) == ([0, 1, 4], torch.int32)


def test_positions_without_prefixes(package):
    positions, starts = package.compute_position(ints(), ints(2, 1), 3)
    assert positions.tolist() == [0, 1, 0]
    assert starts.tolist() == [0, 2]


def test_another_sum_is_refused(package):
    with pytest.raises(package.MetadataError, match="extend_seq_lens_sum is 4, expected 3, the"):
        package.compute_position(ints(0, 0), ints(2, 1), 4)
