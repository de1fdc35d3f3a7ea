"""Tests of page tables as CSR (SPEC.md section 15)."""

from __future__ import annotations

import pytest
import torch


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


def kv_metadata(package, seq_lens, table, page_size):
    made = package.compute_flashinfer_kv_metadata(ints(*seq_lens), ints(*table), page_size)
    assert {tensor.dtype for tensor in made} == {torch.int32}
    return [tensor.tolist() for tensor in made]


@pytest.mark.spec("Example: s = [5, 0, 8], pages of 4, rows [7, 3], [0, 0], [2, 9]")
def test_page_table_of_a_batch(package):
    made = kv_metadata(package, [5, 0, 8], [[7, 3], [0, 0], [2, 9]], 4)
    assert made == [[0, 2, 2, 4], [7, 3, 2, 9], [1, 0, 4]]


@pytest.mark.parametrize(("length", "pages", "last"), [(0, 0, 0), (3, 1, 3), (4, 1, 4), (5, 2, 1)])
def test_last_page_around_a_page_edge(package, length, pages, last):
    indptr, indices, last_page_len = kv_metadata(package, [length], [[7, 3]], 4)
    assert (indptr, indices, last_page_len) == ([0, pages], [7, 3][:pages], [last])


def test_page_table_of_no_requests(package):
    made = package.compute_flashinfer_kv_metadata(ints(), torch.zeros((0, 0), dtype=torch.int64), 4)
    assert [tensor.tolist() for tensor in made] == [[0], [], []]


def test_a_sequence_longer_than_its_row_is_refused(package):
    with pytest.raises(package.MetadataError, match="block_table is 2 columns wide, expected at"):
        kv_metadata(package, [4, 9], [[7, 3], [0, 0]], 4)


def test_a_negative_page_is_refused_unless_it_is_stale(package):
    assert kv_metadata(package, [4], [[7, -1]], 4)[1] == [7]
    with pytest.raises(package.MetadataError, match=r"block_table\[0\] is -1, expected block ids"):
        kv_metadata(package, [5], [[7, -1]], 4)


@pytest.mark.spec("Example: offsets [0, 1, 3, 6], lengths [5, 2, 4], nnz = 7")
def test_requests_and_positions_of_appended_tokens(package):
    made = package.get_batch_indices_positions(ints(0, 1, 3, 6), ints(5, 2, 4), 7)
    assert {tensor.dtype for tensor in made} == {torch.int32}
    requests, positions = [tensor.tolist() for tensor in made]
    assert requests == [0, 1, 1, 2, 2, 2, -1]
    assert positions == [4, 0, 1, 1, 2, 3, 0]


def test_more_appended_tokens_than_the_sequence_has_are_refused(package):
    with pytest.raises(package.MetadataError, match=r"seq_lens\[1\] is 1, expected at least"):
        package.get_batch_indices_positions(ints(0, 1, 3), ints(5, 1), 3)


def kv_indices(package, table, rows, lengths, start, out, page_size=1):
    offsets = torch.cat([ints(0), torch.tensor(lengths).cumsum(0)])
    package.create_flashinfer_kv_indices(
        table, ints(*rows), ints(*lengths), offsets, start, out, entry_page_size=page_size
    )
    return out.tolist()


@pytest.mark.spec("Example: Z = 4, row 1 of the pool is [7, 3], 3 positions from 3 on")
def test_slots_of_pages(package):
    pages, out = ints([0, 0], [7, 3]), torch.full((4,), -9)
    assert kv_indices(package, pages, [1], [3], ints(3), out, 4) == [31, 12, 13, -9]


def test_slots_of_pages_need_64_bits(package):
    pages, out = ints([2**31 - 1]), torch.zeros(2, dtype=torch.int64)
    first = (2**31 - 1) * 16
    assert kv_indices(package, pages, [0], [2], None, out, 16) == [first, first + 1]


def test_slots_of_a_pool(package):
    table, out = ints([5, 6, 7], [1, 2, 3]), torch.full((5,), -9, dtype=torch.int32)
    assert kv_indices(package, table, [1, 0, 1], [2, 0, 2], ints(0, 3, 1), out) == [1, 2, 2, 3, -9]


@pytest.mark.parametrize(
    ("rows", "start", "field"), [([2], None, "req_pool_indices"), ([0], [2], "page_kernel_lens")]
)
def test_positions_outside_the_pool_are_refused(package, rows, start, field):
    out = torch.full((2,), -9, dtype=torch.int32)
    first = None if start is None else ints(*start)
    with pytest.raises(package.MetadataError, match=rf"{field}\[0\] is 2"):
        kv_indices(package, ints([5, 6, 7], [1, 2, 3]), rows, [2], first, out)
    assert out.tolist() == [-9, -9]
