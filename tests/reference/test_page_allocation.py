"""Tests of slots that are handed out (SPEC.md section 15)."""

from __future__ import annotations

import pytest
import torch


def ints(*values):
    return torch.tensor(values, dtype=torch.int64)


def extend(package, prefixes, lengths, last, free, page_size=4):
    out = torch.full((sum(lengths) - sum(prefixes),), -9)
    given = ints(*prefixes), ints(*lengths), ints(*last), ints(*free)
    assert package.alloc_extend(*given, out, page_size) is None
    return out.tolist()


def decode(package, lengths, last, free, page_size=4):
    out = torch.full((len(lengths),), -9)
    assert package.alloc_decode(ints(*lengths), ints(*last), ints(*free), out, page_size) is None
    return out.tolist()


@pytest.mark.spec("Example: pages of 4, prefixes [2, 4], lengths [7, 5], last slots [21, 15]")
def test_slots_behind_prefixes(package):
    slots = extend(package, [2, 4], [7, 5], [21, 15], [9, 3])
    assert slots == [22, 23, 36, 37, 38, 12]


@pytest.mark.spec("Example: pages of 4, lengths [4, 5, 1], last slots [22, 15, -1]")
def test_slots_of_next_tokens(package):
    assert decode(package, [4, 5, 1], [22, 15, -1], [9, 3, 8]) == [23, 36, 12]


@pytest.mark.parametrize(
    ("prefix", "length", "last", "slots"),
    [
        (0, 1, -1, [28]),
        (3, 4, 10, [11]),  # fills the last page
        (3, 5, 10, [11, 28]),
        (4, 5, 11, [28]),  # the prefix ends on a page edge
        (4, 4, 11, []),
        (2, 10, 9, [10, 11, 28, 29, 30, 31, 4, 5]),
    ],
)
def test_slots_around_a_page_edge(package, prefix, length, last, slots):
    assert extend(package, [prefix], [length], [last], [7, 1]) == slots


def test_slots_need_64_bits(package):
    assert extend(package, [0], [2], [-1], [2**31 - 1], 256) == [
        (2**31 - 1) * 256,
        (2**31 - 1) * 256 + 1,
    ]


def test_no_free_page_is_needed_inside_a_page(package):
    assert extend(package, [1], [3], [4], []) == [5, 6]
    assert decode(package, [3], [5], []) == [6]


@pytest.mark.parametrize(
    ("prefix", "length", "last", "free", "message"),
    [
        (0, 5, -1, [7], "free_pages is 1 pages, expected at least 2"),
        (0, 5, -1, [7, 7], r"free_pages\[0\] is 7, expected each page once"),
        (0, 5, -1, [7, -1], r"free_pages\[1\] is -1, expected at least 0"),
        (3, 2, 10, [7], r"seq_lens\[0\] is 2, expected at least the prefix's length"),
        (2, 3, 10, [7], r"last_loc\[0\] is 10, expected the slot of the last token"),
        (4, 5, -1, [7], r"last_loc\[0\] is -1, expected the slot of the last token"),
    ],
)
def test_malformed_input_is_refused(package, prefix, length, last, free, message):
    out = torch.full((max(0, length - prefix),), -9)
    with pytest.raises(package.MetadataError, match=message):
        package.alloc_extend(ints(prefix), ints(length), ints(last), ints(*free), out, 4)
    assert set(out.tolist()) <= {-9}


def test_a_buffer_of_another_length_is_refused(package):
    with pytest.raises(package.MetadataError, match="out_indices is of length 3, expected length"):
        package.alloc_extend(ints(0), ints(2), ints(-1), ints(7), torch.zeros(3).long(), 4)
    with pytest.raises(package.MetadataError, match="out_indices is of length 2, expected length"):
        package.alloc_decode(ints(1), ints(-1), ints(7), torch.zeros(2).long(), 4)
