"""Manager of a KV cache: blocks of requests, and cached prefixes (SPEC.md section 16).

Both packages share it: it holds a few Python objects per request and step, and no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import lcm

from ..checks.kv_manager import (
    check_cached,
    check_external,
    check_hits,
    check_ids,
    check_lookup,
    check_manager,
    check_new_tokens,
)
from ..interface.kv_manager import CacheBlocks, CacheGroup, CacheRequest

_NULL = 0
"""Block in the place of those that no query sees any more; it is never written."""
_Prefix = tuple[int, tuple[int, ...]]
"""Group, and the tokens up to the end of a block and its lookahead: its cached content."""


class KVCacheManager:
    """Block tables of requests in groups of layers, over one pool of `num_blocks` blocks.

    With `enable_caching` full blocks are found again by the tokens up to their ends and
    `num_hash_lookahead_tokens` behind them, until they are evicted. Requests without blocks leave
    the share `watermark` of the blocks free. Malformed input raises MetadataError or TypeError
    and changes nothing. SPEC.md section 16.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[CacheGroup],
        max_model_len: int,
        enable_caching: bool = True,
        num_hash_lookahead_tokens: int = 0,
        watermark: float = 0.0,
    ) -> None:
        lookahead = num_hash_lookahead_tokens
        check_manager(num_blocks, groups, max_model_len, enable_caching, lookahead, watermark)
        self._groups = list(groups)
        self._alignment = lcm(*(group.block_size for group in groups))  # of hits
        self._max_model_len = max_model_len
        self._caching = enable_caching
        self._lookahead = lookahead
        self._watermark = int(watermark * num_blocks)  # blocks that stay free
        drafts = [] if lookahead else [group for group in groups if group.draft]
        # Groups that are alike are looked up together.
        self._drops = [any(replace(g, draft=True) == draft for draft in drafts) for g in groups]
        self._queue = list(range(1, num_blocks))  # free blocks; the first is taken next
        self._references = [0] * num_blocks
        self._cached: dict[_Prefix, list[int]] = {}  # blocks of equal content, oldest first
        self._prefix_of: dict[int, _Prefix] = {}  # of each cached block
        self._writers: dict[int, CacheRequest] = {}  # who cached each block last
        self._tables: dict[str, list[list[int]]] = {}
        self._num_published: dict[str, list[int]] = {}  # blocks of each table that were cached
        self._fresh: set[_Prefix] = set()  # states that are computed in the current step

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request has; cached ones among them."""
        return len(self._queue)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return the block ids of a request in each group, none if it has no blocks."""
        tables = self._tables.get(request_id, [[] for _ in self._groups])
        return tuple(list(table) for table in tables)

    def get_computed_blocks(
        self, request: CacheRequest, max_cache_hit_length: int | None = None
    ) -> tuple[CacheBlocks, int]:
        """Return the longest cached prefix that every group accepts: its blocks and its tokens.

        It has at most `max_cache_hit_length` tokens, by default all but the request's last one.
        """
        most = check_lookup(request, max_cache_hit_length, self._max_model_len)
        if self._caching:
            for tokens in range(most // self._alignment * self._alignment, 0, -self._alignment):
                choices = self._all_choices(request, tokens)
                found = all(ids for group in choices for ids in group)
                if found and self._has_dropped(request, tokens, most):
                    return CacheBlocks(tuple([ids[0] for ids in each] for each in choices)), tokens
        return CacheBlocks(tuple([] for _ in self._groups)), 0

    def allocate_slots(
        self,
        request: CacheRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: CacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
    ) -> CacheBlocks | None:
        """Give a request blocks for new tokens behind its computed, hit and external ones.

        Return the new blocks of each group, without hits and those of external tokens, which a
        connector writes; None if too few are free, or if a hit state is computed in the current
        step. Full blocks of the request's tokens are cached from now on, unless it is delayed:
        the step writes their keys before it reads any. Blocks behind a window are freed in any
        case.
        """
        hits, external = num_new_computed_tokens, num_external_computed_tokens
        lengths = num_new_tokens, hits, num_lookahead_tokens, external
        check_new_tokens(request, *lengths, self._max_model_len)
        tables = self._tables.get(request.request_id)
        choices = self._all_choices(request, hits)
        capacity = self._capacity(request)
        check_hits(request, hits, new_computed_blocks, choices, self._alignment, capacity)
        check_external(external, capacity)

        computed = request.num_computed_tokens + hits + external
        end = computed + num_new_tokens
        # A step in flight still reads what queries before its end see, and drafts may be rejected.
        skipped = [
            self._skipped(group, max(0, computed - request.num_in_flight_tokens))
            for group in range(len(self._groups))
        ]
        for table, first in zip(tables or [], skipped, strict=False):
            self._free_skipped(table, first)
        if tables is not None:
            adopted, reserve = tables, 0
        else:
            empty = CacheBlocks(tuple([] for _ in self._groups))
            hit_ids = (new_computed_blocks or empty).get_block_ids()
            adopted, reserve = [], self._watermark
            for ids, first in zip(hit_ids, skipped, strict=True):
                adopted.append([_NULL] * first + ids[first:])
        room = min(end + num_lookahead_tokens, self._max_model_len)
        loaded = [self._missing(*each, computed, computed) for each in enumerate(adopted)]
        missing = [
            self._missing(group, [*table, *loaded[group]], end, room)
            for group, table in enumerate(adopted)
        ]
        free_hits = {b for hit in adopted for b in hit if b != _NULL and not self._references[b]}
        needed = sum(map(sum, [*loaded, *missing]))
        if needed + len(free_hits) + reserve > len(self._queue):
            return None
        if hits and any(self._is_fresh(group, hits, request) for group in range(len(adopted))):
            return None

        if tables is None:
            tables = self._tables[request.request_id] = [[] for _ in self._groups]
            self._num_published[request.request_id] = [len(ids) for ids in adopted]
            # All hits are adopted before a block is taken, which may evict one.
            for table, ids in zip(tables, adopted, strict=True):
                self._adopt(table, ids)
        for table, each in zip(tables, loaded, strict=True):
            table.extend(self._take_all(each))
        new = [self._take_all(each) for each in missing]
        for table, ids in zip(tables, new, strict=True):
            table.extend(ids)
        if not delay_cache_blocks:
            self._publish(request, end)
        return CacheBlocks(tuple(new))

    def cache_blocks(self, request: CacheRequest, num_computed_tokens: int) -> None:
        """Cache the full blocks of computed tokens whose caching was delayed."""
        capacity = self._capacity(request)
        check_cached(request, num_computed_tokens, self._max_model_len, capacity)
        if capacity is not None:
            self._publish(request, num_computed_tokens)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Forget what blocks cache; requests keep them, and do not cache them again."""
        ids = list(block_ids)
        check_ids(ids, len(self._references))
        for block in ids:
            self._forget(block)

    def new_step_starts(self) -> None:
        """Let states be hit that were computed in the step before."""
        self._fresh.clear()

    def free(self, request: CacheRequest) -> None:
        """Free the blocks of a request that has ended or is preempted.

        Cached ones can be hit until they are evicted, the last block of the request first, but
        not those of tokens that are not computed: a step that was to do so does not run. Nothing
        happens if it has none: it may be aborted before it got any.
        """
        for group, table in enumerate(self._tables.pop(request.request_id, [])):
            for block in table[request.num_computed_tokens // self._groups[group].block_size :]:
                if self._writers.get(block) is request:
                    self._forget(block)
            self._release(reversed(table))
        self._num_published.pop(request.request_id, None)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, and return True, unless a request has blocks."""
        if any(self._references):
            return False
        self._cached.clear()
        self._prefix_of.clear()
        self._writers.clear()
        return True

    def _capacity(self, request: CacheRequest) -> int | None:
        """Return the tokens that a request's blocks hold in each group, None without blocks."""
        tables = self._tables.get(request.request_id)
        if tables is None:
            return None
        return min(len(t) * g.block_size for t, g in zip(tables, self._groups, strict=True))

    def _all_choices(self, request: CacheRequest, tokens: int) -> list[list[list[int]]]:
        return [self._choices(group, request, tokens) for group in range(len(self._groups))]

    def _choices(self, group: int, request: CacheRequest, tokens: int) -> list[list[int]]:
        """Return the ids that each block of a hit of `tokens` tokens may have."""
        blocks = tokens // self._groups[group].block_size
        skipped = self._skipped(group, tokens)
        prefixes = [self._prefix(group, request, i) for i in range(skipped, blocks)]
        hashed = (len(request.token_ids) - self._lookahead) // self._groups[group].block_size
        choices = [self._cached.get(prefix, []) for prefix in prefixes]
        choices[max(0, hashed - skipped) :] = [[] for _ in range(max(skipped, hashed), blocks)]
        if self._drops[group] and self._groups[group].draft:
            choices = [
                [block for block in blocks if self._is_followed(block, prefix, request)]
                for blocks, prefix in zip(choices, prefixes, strict=True)
            ]
        return [[_NULL]] * skipped + choices

    def _is_followed(self, block: int, prefix: _Prefix, request: CacheRequest) -> bool:
        """True if the token behind a draft block, on which its last key depends, is the request's.

        The token is unknown of a writer that ended there.
        """
        end = len(prefix[1])
        behind = self._writers[block].token_ids[end : end + 1]
        return behind == request.token_ids[end : end + 1] != []

    def _has_dropped(self, request: CacheRequest, tokens: int, most: int) -> bool:
        """True if a block more is cached in groups of a drafter, which recomputes it."""
        # vLLM looks up a group that is alone within the tokens that a hit may have.
        most = most if len(self._groups) == 1 else len(request.token_ids)
        return all(
            tokens + group.block_size <= most
            and self._cached.get(self._prefix(number, request, tokens // group.block_size))
            for number, group in enumerate(self._groups)
            if self._drops[number]
        )

    def _skipped(self, group: int, computed: int) -> int:
        """Return how many leading blocks no query from position `computed` on sees."""
        each = self._groups[group]
        first = 0  # key that the query sees, or the last token of the state that it needs
        if each.kind == "window":
            first = max(0, computed - each.window + 1)
        elif each.kind == "chunked":
            first = computed // each.window * each.window
        elif each.kind == "mamba":
            first = max(0, computed - 1)
        return first // each.block_size

    def _missing(self, group: int, table: list[int], end: int, room: int) -> list[bool]:
        """Return the entries that a table lacks: True of blocks, False of NULL.

        A step leaves one state, that behind its last token: drafts have none.
        """
        each = self._groups[group]
        count = -(-(end if each.kind == "mamba" else room) // each.block_size) - len(table)
        return [each.kind != "mamba" or i == count - 1 for i in range(count)]

    def _is_fresh(self, group: int, hits: int, request: CacheRequest) -> bool:
        """True if a hit state is that of a prefix that is computed in the current step."""
        block = hits // self._groups[group].block_size - 1
        return self._prefix(group, request, block) in self._fresh

    def _prefix(self, group: int, request: CacheRequest, block: int) -> _Prefix:
        end = (block + 1) * self._groups[group].block_size + self._lookahead
        return group, tuple(request.token_ids[:end])

    def _adopt(self, table: list[int], blocks: list[int]) -> None:
        for block in blocks:
            if block != _NULL:
                if not self._references[block]:
                    self._queue.remove(block)
                self._references[block] += 1
        table += blocks

    def _take(self) -> int:
        """Take a block from the head of the queue; what it cached is evicted."""
        block = self._queue.pop(0)
        self._references[block] = 1
        self._forget(block)
        return block

    def _take_all(self, needed: list[bool]) -> list[int]:
        return [self._take() if each else _NULL for each in needed]

    def _forget(self, block: int) -> None:
        """Let no request find a block any more."""
        prefix = self._prefix_of.pop(block, None)
        if prefix is not None:
            self._cached[prefix].remove(block)
            if not self._cached[prefix]:
                self._fresh.discard(prefix)

    def _publish(self, request: CacheRequest, tokens: int) -> None:
        """Let later requests find the full blocks of the first `tokens` tokens."""
        published = self._num_published[request.request_id]
        for group, table in enumerate(self._tables[request.request_id] if self._caching else []):
            full = self._num_full(group, request, tokens)
            for i in range(published[group], full):
                block = table[i]
                if block != _NULL and self._is_needed(group, i):
                    prefix = self._prefix(group, request, i)
                    self._cached.setdefault(prefix, []).append(block)
                    self._prefix_of[block] = prefix
                    self._writers[block] = request
                    if self._groups[group].kind == "mamba":
                        self._fresh.add(prefix)
            published[group] = max(published[group], full)

    def _num_full(self, group: int, request: CacheRequest, tokens: int) -> int:
        """Return the number of blocks that a hit may need, `tokens` being computed."""
        size = self._groups[group].block_size
        limit = known = min(tokens, len(request.token_ids))
        if len(self._groups) > 1:
            limit = known // self._alignment * self._alignment
            if self._drops[group] and limit:
                limit = min(known, limit + size)
        return min(limit, len(request.token_ids) - self._lookahead) // size

    def _is_needed(self, group: int, block: int) -> bool:
        """True if a hit may need a full block: in small blocks a window sees the last ones only."""
        size, drops = self._groups[group].block_size, self._drops[group]
        if self._groups[group].kind != "window":
            return True
        # A hit ends at a multiple of the alignment, and needs the blocks that its window sees.
        needed = -(-(self._groups[group].window - 1) // size) + drops
        each = self._alignment // size
        return needed >= each or (block >= drops and (block - drops) % each >= each - needed)

    def _free_skipped(self, table: list[int], skipped: int) -> None:
        """Free the first `skipped` blocks of a table, and put NULL in their place."""
        self._release(reversed(table[:skipped]))
        table[:skipped] = [_NULL] * len(table[:skipped])

    def _release(self, blocks: Iterable[int]) -> None:
        """Drop a reference of each block: cached ones join the queue's tail, others its head."""
        free = []
        for block in blocks:
            if block != _NULL:
                self._references[block] -= 1
                if not self._references[block]:
                    free.append(block)
        cached = [block for block in free if block in self._prefix_of]
        others = [block for block in free if block not in self._prefix_of]
        self._queue = [*others, *self._queue, *cached]
