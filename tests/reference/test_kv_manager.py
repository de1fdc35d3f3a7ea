"""Tests of the manager of a KV cache (SPEC.md section 16)."""

from __future__ import annotations

import pytest

from attnproof.reference import CacheBlocks, CacheGroup, CacheRequest, MetadataError

FULL = CacheGroup("full", 4)
WINDOW = CacheGroup("window", 4, 6)


class Served:
    """A manager, and a request through a step of `tokens` tokens."""

    def __init__(self, package, num_blocks, *groups, **options):
        self.manager = package.KVCacheManager(num_blocks, groups, 32, **options)

    def step(self, request, tokens, lookahead=0):
        """Return hits and new blocks, None if there is no room."""
        blocks, hits = None, 0
        if not any(self.manager.get_block_ids(request.request_id)):
            blocks, hits = self.manager.get_computed_blocks(request)
        new = self.manager.allocate_slots(request, tokens - hits, hits, blocks, lookahead)
        if new is None:
            return None
        request.num_computed_tokens += tokens
        return hits, new.get_block_ids()

    def ids(self, name):
        """Return the request's blocks."""
        return self.manager.get_block_ids(name)


def request(name, *tokens):
    """Return a request without computed tokens."""
    return CacheRequest(name, list(tokens))


@pytest.mark.spec("Example: 6 blocks, one full group of 4, request a with tokens 0 to 9.")
def test_a_prefix_is_adopted(package):
    served, first = Served(package, 6, FULL), request("a", *range(10))
    assert served.step(first, 10) == (0, ([1, 2, 3],))
    served.manager.free(first)
    other = request("b", *range(8), 50)
    assert served.manager.get_computed_blocks(other) == (CacheBlocks(([1, 2],)), 8)
    assert served.step(other, 9) == (8, ([3],))
    assert served.ids("b") == ([1, 2, 3],)
    assert served.manager.num_free_blocks == 2


@pytest.mark.spec("Example: a draft group of 4; a and b part behind their first block.")
def test_a_draft_block_is_hit_with_the_token_behind_it(package):
    served = Served(package, 20, CacheGroup("full", 4, draft=True))
    served.step(request("a", *range(4), *[90] * 5), 9)
    assert served.step(request("b", *range(13)), 13) == (0, ([4, 5, 6, 7],))
    # The block behind the hit has to be cached too, and is computed again.
    blocks, hits = served.manager.get_computed_blocks(request("c", *range(12), 50))
    assert (blocks.get_block_ids(), hits) == (([4, 5],), 8)
    blocks, hits = served.manager.get_computed_blocks(request("d", *range(12)))
    assert (blocks.get_block_ids(), hits) == (([4],), 4)


def test_a_group_like_the_drafts_drops_a_block_too(package):
    served = Served(package, 20, FULL, CacheGroup("full", 4, draft=True))
    served.step(request("a", *range(12)), 12)
    # Beside another group the block behind the hit may end at the last token.
    hits = served.manager.get_computed_blocks(request("b", *range(12)))
    assert hits == (CacheBlocks(([1, 2], [4, 5])), 8)


def test_a_hash_may_cover_the_token_behind_its_block(package):
    draft = CacheGroup("full", 4, draft=True)
    served = Served(package, 20, draft, num_hash_lookahead_tokens=1)
    first = request("a", *range(8))
    served.step(first, 8)
    assert served.manager.get_computed_blocks(request("b", *range(9)))[1] == 4
    first.token_ids.append(8)
    served.step(first, 1)
    assert served.manager.get_computed_blocks(request("b", *range(9)))[1] == 8
    assert served.manager.get_computed_blocks(request("c", *range(8), 90))[1] == 4


STATES = CacheGroup("mamba", 4)


@pytest.mark.spec("Example: a window group of 4 with a window of 6 and retention interval 0,")
def test_the_hit_of_the_same_prompt_is_retained(package):
    served = Served(package, 6, WINDOW, retention_interval=0)
    first = CacheRequest("a", list(range(8)), num_prompt_tokens=8)
    assert served.step(first, 8) == (0, ([1, 2],))
    served.manager.free(first)
    hits = served.manager.get_computed_blocks(request("b", *range(8)))
    assert hits == (CacheBlocks(([1],)), 4)
    assert served.manager.get_computed_blocks(request("c", *range(9))) == hits


@pytest.mark.parametrize("interval", [0, 4, 8])
def test_a_drafter_resumes_a_block_earlier(package, interval):
    draft = CacheGroup("window", 4, 6, draft=True)
    served = Served(package, 20, draft, retention_interval=interval)
    first = CacheRequest("a", list(range(17)), num_prompt_tokens=17)
    served.step(first, 17)
    hits = [served.manager.get_computed_blocks(request("b", *range(n)))[1] for n in (18, 14, 10)]
    assert hits == {0: [12, 0, 0], 4: [12, 8, 4], 8: [12, 8, 4]}[interval]


@pytest.mark.parametrize(
    ("group", "interval", "message"),
    [
        (WINDOW, 6, "retention_interval is 6, expected a multiple of 4"),
        (FULL, 4, "retention_interval is 4, expected 0 without windows and states"),
        (WINDOW, -4, "retention_interval is -4, expected at least 0"),
    ],
)
def test_a_wrong_retention_interval_is_refused(package, group, interval, message):
    with pytest.raises(MetadataError, match=message):
        package.KVCacheManager(6, [group], 32, retention_interval=interval)


def test_new_blocks_are_zeroed_unless_a_load_fills_them(package):
    manager = package.KVCacheManager(20, [FULL, STATES], 32)
    first = request("a", *range(9))
    manager.allocate_slots(first, 0, 0, None, 0, 8, True)
    assert manager.take_new_block_ids() == []
    first.num_computed_tokens = 8
    (blocks, _) = manager.allocate_slots(first, 1).get_block_ids()
    assert manager.take_new_block_ids() == blocks
    assert manager.take_new_block_ids() == []


@pytest.mark.spec(
    "Example: a state group of 4, request a with tokens 0 to 9, in chunks of 8 and 2."
)
def test_a_hit_needs_the_state_at_its_end(package):
    served, first = Served(package, 9, STATES), request("a", *range(10))
    assert served.step(first, 8) == (0, ([0, 1],))
    other = request("b", *range(9))
    blocks, hits = served.manager.get_computed_blocks(other)
    assert (blocks.get_block_ids(), hits) == (([0, 1],), 8)
    assert served.step(other, 9) is None  # the state is computed in this step
    served.manager.new_step_starts()
    assert served.step(other, 9) == (8, ([2],))
    assert served.step(first, 2) == (0, ([3],))
    assert served.ids("a") == ([0, 1, 3],)
    assert served.step(first, 1) == (0, ([],))
    assert served.ids("a") == ([0, 0, 3],)


def test_a_chunk_sees_none_of_the_chunks_before_it(package):
    served, first = Served(package, 9, FULL, CacheGroup("chunked", 4, 8)), request("a", *range(13))
    served.step(first, 12)
    assert served.manager.get_computed_blocks(request("b", *range(13))) == (
        CacheBlocks(([1, 2, 3], [0, 0, 6])),
        12,
    )
    served.step(first, 1)
    assert served.ids("a") == ([1, 2, 3, 7], [0, 0, 6, 8])


def test_hits_end_where_blocks_of_all_sizes_end(package):
    served = Served(package, 20, FULL, CacheGroup("window", 8, 6))
    served.step(request("a", *range(17)), 17)
    assert served.manager.get_computed_blocks(request("b", *range(15)))[1] == 8
    assert served.manager.get_computed_blocks(request("c", *range(17))) == (
        CacheBlocks(([1, 2, 3, 4], [0, 7])),
        16,
    )


def test_of_a_window_only_the_blocks_before_the_end_of_a_hit_are_cached(package):
    served = Served(package, 12, CacheGroup("window", 2, 3), CacheGroup("window", 8, 9))
    first = request("a", *range(16))
    served.step(first, 16)
    served.manager.free(first)
    served.step(request("b", *range(90, 98)), 8)
    # Six of the eight small blocks are not cached, so they go first.
    assert served.manager.get_computed_blocks(request("c", *range(17)))[1] == 16


def test_a_token_is_left_to_compute(package):
    served = Served(package, 9, FULL)
    served.step(request("a", *range(8)), 8)
    assert served.manager.get_computed_blocks(request("b", *range(8)))[1] == 4
    assert served.manager.get_computed_blocks(request("c", *range(9)))[1] == 8


def test_the_last_block_of_a_request_is_evicted_first(package):
    served, first = Served(package, 4, FULL), request("a", *range(12))
    served.step(first, 12)
    served.manager.free(first)
    served.step(request("b", 90), 1)
    assert served.ids("b") == ([3],)
    assert served.manager.get_computed_blocks(request("c", *range(13)))[1] == 8


def test_blocks_behind_a_window_are_freed_and_can_be_hit(package):
    served, first = Served(package, 9, WINDOW), request("a", *range(13))
    served.step(first, 12)
    assert served.step(first, 1) == (0, ([4],))
    # The query at 12 sees keys 7 to 12.
    assert served.ids("a") == ([0, 2, 3, 4],)
    assert served.manager.num_free_blocks == 5
    hits = served.manager.get_computed_blocks(request("b", *range(9)))
    assert hits == (CacheBlocks(([1, 2],)), 8)


def test_a_hit_needs_the_blocks_of_all_groups(package):
    served, first = Served(package, 12, FULL, WINDOW), request("a", *range(13))
    served.step(first, 12)
    served.step(first, 1)
    # Block 4 is behind the window and free: it is cached, so it goes last.
    assert served.ids("a") == ([1, 2, 3, 7], [0, 5, 6, 8])
    resent = request("b", *range(9))
    assert served.manager.get_computed_blocks(resent)[1] == 8
    assert served.step(request("c", *range(90, 94)), 4) == (0, ([9], [10]))
    assert served.manager.get_computed_blocks(resent)[1] == 8
    assert served.step(request("d", *range(80, 84)), 4) == (0, ([11], [4]))
    assert served.manager.get_computed_blocks(resent)[1] == 0


def test_no_room_changes_nothing_but_what_is_behind_the_window(package):
    served, first = Served(package, 4, WINDOW), request("a", *range(17))
    served.step(first, 12)
    assert served.step(request("b", 90), 1) is None
    assert served.ids("b") == ([],)
    assert served.step(first, 5, lookahead=9) is None
    assert served.ids("a") == ([0, 2, 3],)


def test_the_lookahead_ends_at_the_longest_length(package):
    served = Served(package, 20, FULL)
    first = request("a", *range(30))
    assert served.step(first, 30, lookahead=9) == (0, ([1, 2, 3, 4, 5, 6, 7, 8],))


def test_reset(package):
    served, first = Served(package, 9, FULL), request("a", *range(9))
    served.step(first, 9)
    assert not served.manager.reset_prefix_cache()
    assert served.manager.get_computed_blocks(request("b", *range(9)))[1] == 8
    served.manager.free(first)
    served.manager.free(first)  # it has no blocks any more
    assert served.manager.reset_prefix_cache()
    assert served.manager.get_computed_blocks(request("b", *range(9)))[1] == 0


def test_without_caching_nothing_is_hit(package):
    served, first = Served(package, 9, FULL, enable_caching=False), request("a", *range(9))
    served.step(first, 9)
    assert served.manager.get_computed_blocks(request("b", *range(9)))[1] == 0


@pytest.mark.parametrize(
    ("name", "computed", "arguments", "field"),
    [
        ("b", 0, (0,), "num_new_tokens"),
        ("b", 0, (33,), "the sum of computed, hit, external and new tokens"),
        ("b", 4, (1,), "num_computed_tokens"),
        ("a", 9, (1, 8, CacheBlocks(([1, 2],))), "new_computed_blocks"),
        ("b", 0, (1, 8, CacheBlocks(([2, 1],))), "new_computed_blocks"),
        ("b", 0, (1, 8, CacheBlocks(([1, 99],))), "new_computed_blocks"),
        ("b", 0, (1, 6, CacheBlocks(([1],))), "new_computed_blocks"),
        ("b", 0, (1, 0, CacheBlocks(([1],))), "new_computed_blocks"),
        ("b", 0, (1, 8), "new_computed_blocks"),
        ("a", 9, (1,), "request_id"),
    ],
)
def test_malformed_calls_change_nothing(package, name, computed, arguments, field):
    served, first = Served(package, 9, FULL), request("a", *range(9))
    served.step(first, 9)
    calling = CacheRequest(name, list(range(12)), computed)
    with pytest.raises(MetadataError, match=f"allocate_slots: {field} "):
        served.manager.allocate_slots(calling, *arguments)
    assert served.ids("a") == ([1, 2, 3],)
    assert served.ids("b") == ([],)
    assert served.manager.num_free_blocks == 5


def test_another_request_with_the_id_frees_nothing(package):
    served, first = Served(package, 9, FULL), request("a", *range(9))
    served.step(first, 9)
    with pytest.raises(MetadataError, match="free: request_id is 'a'"):
        served.manager.free(request("a", *range(9)))
    served.manager.free(first)
    served.manager.free(first)
    assert served.manager.num_free_blocks == 8


def test_a_request_is_at_most_as_long_as_the_longest(package):
    manager = Served(package, 9, FULL).manager
    with pytest.raises(MetadataError, match="token_ids is of length 33, expected at most 32"):
        manager.get_computed_blocks(request("a", *range(33)))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1, [FULL], 8), "num_blocks is 1, expected at least 2"),
        ((2, [FULL], 0), "max_model_len is 0"),
        ((2, [], 8), "groups is empty"),
        ((2, [FULL], 8, True, -1), "num_hash_lookahead_tokens is -1, expected at least 0"),
        ((2, [FULL], 8, True, 0, 1.5), "watermark is 1.5, expected from 0 to 1"),
        ((2, [CacheGroup("full", 4, draft=True)] * 2, 8), "draft is True of two groups"),
        ((2, [CacheGroup("mamba", 4, 1)], 8), "window is 1, expected 0 of a mamba group"),
        ((2, [CacheGroup("mamba", 4, draft=True)], 8), "draft is True, expected False of a mamba"),
        ((2, [CacheGroup("chunked", 4, 6)], 8), "window is 6, expected a multiple of the block"),
        ((2, [CacheGroup("chunked", 4, 8), CacheGroup("window", 8, 8)], 8), "block_size is 4"),
        ((2, [FULL, CacheGroup("window", 2, 4)], 8), "block_size is 4, expected 2, the greatest"),
        (
            (2, [CacheGroup("linear", 4)], 8),
            "kind is 'linear', expected full, window, chunked or mamba",
        ),
        ((2, [CacheGroup("window", 4, 1)], 8), "window is 1, expected at least 2"),
        ((2, [CacheGroup("full", 4, 3)], 8), "window is 3, expected 0 of a full group"),
    ],
)
def test_malformed_sizes(package, arguments, text):
    with pytest.raises(MetadataError, match=text):
        package.KVCacheManager(*arguments)
