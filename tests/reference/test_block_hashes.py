"""Tests of the hashes of blocks (SPEC.md section 16)."""

from __future__ import annotations

import pytest

from attnproof.reference import MetadataError

NO_NAMES = ["", "", ""]


def match(package, rows, *, items=None, names=None, hash_size=2, size=2, lookahead=0):
    """Return the numbers of the blocks of requests whose prompts are all of their tokens."""
    items = items or [[] for _ in rows]
    names = names or [NO_NAMES for _ in rows]
    lengths = [len(row) for row in rows]
    return package.match_block_hashes(rows, lengths, items, names, hash_size, size, lookahead)


@pytest.mark.spec("Example: B = 2, tokens [1, 2, 3, 4] and [1, 2, 3, 5]: [[0, 1], [0, 2]]")
def test_equal_prefixes_have_one_number(package):
    rows = [[1, 2, 3, 4], [1, 2, 3, 5]]
    assert match(package, rows) == [[0, 1], [0, 2]]
    assert match(package, rows, lookahead=1) == [[0], [0]]


def test_larger_blocks_have_the_hash_of_their_end(package):
    rows = [[1, 2, 3, 4], [1, 2, 9, 4]]
    assert match(package, rows, size=4) == [[0], [1]]


def test_an_adapter_is_no_salt(package):
    names = [["x", "", ""], ["", "", "x"], ["x", "", ""]]
    assert match(package, [[1, 2]] * 3, names=names) == [[0], [1], [0]]


def test_an_item_counts_with_its_place_from_the_block_on_in_which_it_begins(package):
    items = [[[7, 2, 2]], [[7, 3, 1]], [[8, 2, 2]]]
    assert match(package, [[0] * 4] * 3, items=items) == [[0, 1], [0, 2], [0, 3]]


def test_sizes_that_do_not_go_together(package):
    with pytest.raises(MetadataError, match="block_size is 3"):
        match(package, [[1, 2]], size=3)
