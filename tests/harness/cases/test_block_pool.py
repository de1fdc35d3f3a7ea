"""The block pool allocates, caches, shares and releases blocks."""

from __future__ import annotations

from attnproof.harness.cases.scheduler.block_pool import NULL_BLOCK, BlockKeys, BlockPool
from attnproof.harness.cases.traces.formats import TraceRequest


def test_the_null_block_is_never_allocated() -> None:
    pool = BlockPool(5)
    assert pool.size == 4
    assert NULL_BLOCK not in pool.allocate(4)
    assert pool.num_free == 0


def test_blocks_are_reused_longest_free_first_and_those_of_a_request_from_the_last() -> None:
    pool = BlockPool(7)
    first, second = pool.allocate(2), pool.allocate(2)
    pool.release(second)
    pool.release(first)
    assert pool.allocate(6) == [5, 6, 4, 3, 2, 1]


def test_a_free_block_is_found_by_its_key_until_it_is_allocated_again() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.register(blocks, [10, 11])
    pool.release(blocks)
    assert pool.find_prefix([10, 11, 12]) == [1, 2]
    assert pool.find_prefix([11]) == [2]
    assert pool.count_free([1, 2]) == 2
    pool.share([1])
    assert (pool.references(1), pool.num_free) == (1, 2)
    assert pool.allocate(2) == [3, 2]
    assert pool.find_prefix([10, 11]) == [1]


def test_shared_blocks_are_free_once_the_last_request_releases_them() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.register(blocks, [5])
    pool.share(blocks)
    assert pool.references(1) == 2
    pool.release(blocks)
    assert pool.num_free == 1
    pool.release(blocks)
    assert pool.num_free == 2


def test_a_key_is_found_at_the_first_of_its_blocks_that_is_left() -> None:
    pool = BlockPool(4)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.register(first, [5])
    pool.register(second, [5])
    assert pool.find_prefix([5]) == first
    pool.release(first)
    assert pool.find_prefix([5]) == first
    assert pool.allocate(2) == [3, *first]
    assert pool.find_prefix([5]) == second


def test_keys_of_equal_prefixes_are_equal() -> None:
    a = TraceRequest(0, 40, 1, (7, 8, 9), 16)
    b = TraceRequest(0, 48, 1, (7, 8, 20), 16)
    for size in (4, 16, 32, 1):
        keys = BlockKeys(size)
        first, second = keys.of_prompt(a, 40), keys.of_prompt(b, 48)
        assert (len(first), len(second)) == (40 // size, 48 // size)
        equal = [x == y for x, y in zip(first, second, strict=False)]
        assert equal == [(block + 1) * size <= 32 for block in range(len(equal))]
        assert len(set(first)) == len(first)


def test_keys_end_with_the_hashes_or_the_truncated_prompt() -> None:
    keys = BlockKeys(4)
    assert len(keys.of_prompt(TraceRequest(0, 100, 1, (1,), 16), 100)) == 4
    assert len(keys.of_prompt(TraceRequest(0, 100, 1, (1, 2), 16), 11)) == 2
    assert keys.of_prompt(TraceRequest(0, 100, 1), 100) == []


def test_private_keys_of_requests_are_distinct() -> None:
    own = [*BlockKeys.own(0, 0, 50), *BlockKeys.own(1, 0, 50)]
    assert len(set(own)) == 100
    assert max(own) < 0
    assert list(BlockKeys.own(1, 3, 5)) == list(BlockKeys.own(1, 0, 5))[3:]
