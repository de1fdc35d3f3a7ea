"""Manager of a KV cache: blocks of requests, and cached prefixes (SPEC.md section 16).

Both packages share it: it holds a few Python objects per request and step, and no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..checks.kv_manager import check_hits, check_manager, check_new_tokens, check_request
from ..interface.kv_manager import CacheBlocks, CacheGroup, CacheRequest

_NULL = 0
"""Block in the place of those that no query sees any more; it is never written."""
_Prefix = tuple[int, tuple[int, ...]]
"""Group, and the tokens up to the end of a block and its lookahead: its cached content."""


class KVCacheManager:
    """Block tables of requests in groups of layers, over one pool of `num_blocks` blocks.

    All groups have one block size. With `enable_caching` full blocks are found again by the
    tokens up to their ends and `num_hash_lookahead_tokens` behind them (0 or 1), until they are
    evicted. Malformed input raises MetadataError or TypeError and changes nothing. SPEC.md
    section 16.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[CacheGroup],
        max_model_len: int,
        enable_caching: bool = True,
        num_hash_lookahead_tokens: int = 0,
    ) -> None:
        lookahead = num_hash_lookahead_tokens
        check_manager(num_blocks, groups, max_model_len, enable_caching, lookahead)
        self._groups = list(groups)
        self._block_size = groups[0].block_size
        self._max_model_len = max_model_len
        self._caching = enable_caching
        self._lookahead = lookahead
        drafts = [] if lookahead else [group for group in groups if group.draft]
        # Groups that are alike are looked up together.
        self._drops = [any(replace(g, draft=True) == draft for draft in drafts) for g in groups]
        self._queue = list(range(1, num_blocks))  # free blocks; the first is taken next
        self._references = [0] * num_blocks
        self._cached: dict[_Prefix, list[int]] = {}  # blocks of equal content, oldest first
        self._prefix_of: dict[int, _Prefix] = {}  # of each cached block
        self._writers: dict[int, CacheRequest] = {}  # whose tokens a cached block holds
        self._tables: dict[str, list[list[int]]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request has; cached ones among them."""
        return len(self._queue)

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Return the block ids of a request in each group, none if it has no blocks."""
        tables = self._tables.get(request_id, [[] for _ in self._groups])
        return tuple(list(table) for table in tables)

    def get_computed_blocks(self, request: CacheRequest) -> tuple[CacheBlocks, int]:
        """Return the longest cached prefix that every group accepts: its blocks and its tokens.

        At least the request's last token is left to compute.
        """
        check_request("KVCacheManager.get_computed_blocks", request, self._max_model_len)
        if self._caching:
            for blocks in range((len(request.token_ids) - 1) // self._block_size, 0, -1):
                choices = self._all_choices(request, blocks)
                found = all(ids for group in choices for ids in group)
                if found and self._has_dropped(request, blocks):
                    hits = tuple([ids[0] for ids in group] for group in choices)
                    return CacheBlocks(hits), blocks * self._block_size
        return CacheBlocks(tuple([] for _ in self._groups)), 0

    def allocate_slots(
        self,
        request: CacheRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: CacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
    ) -> CacheBlocks | None:
        """Give a request blocks for new tokens behind its computed and hit ones.

        Return the new blocks of each group, hits not among them; None if too few are free.
        Full blocks of the request's tokens are cached from now on: the step writes their keys
        before it reads any. Blocks behind a window are freed in any case.
        """
        hits = num_new_computed_tokens
        lengths = num_new_tokens, hits, num_lookahead_tokens
        check_new_tokens(request, *lengths, self._max_model_len)
        size, tables = self._block_size, self._tables.get(request.request_id)
        choices = self._all_choices(request, hits // size)
        room = None if tables is None else len(tables[0]) * size
        check_hits(request, hits, new_computed_blocks, choices, size, room)

        computed = request.num_computed_tokens + hits
        end = min(computed + num_new_tokens + num_lookahead_tokens, self._max_model_len)
        for group, table in enumerate(tables or []):
            self._free_skipped(table, self._skipped(group, computed))
        tables = tables or [[] for _ in self._groups]
        adopted = new_computed_blocks.get_block_ids() if hits and new_computed_blocks else tables
        missing = [max(0, -(-end // size) - len(blocks)) for blocks in adopted]
        free_hits = {b for hit in adopted for b in hit if b != _NULL and not self._references[b]}
        if sum(missing) + len(free_hits) > len(self._queue):
            return None

        self._tables[request.request_id] = tables
        if hits:
            for table, hit in zip(tables, adopted, strict=True):
                self._adopt(table, hit)
        new = [self._take(count) for count in missing]
        for table, blocks in zip(tables, new, strict=True):
            table.extend(blocks)
        if self._caching:
            known = max(0, len(request.token_ids) - self._lookahead)
            self._publish(request, min(computed + num_new_tokens, known))
        return CacheBlocks(tuple(new))

    def free(self, request: CacheRequest) -> None:
        """Free the blocks of a request that has ended or is preempted.

        Cached ones can be hit until they are evicted, the last block of the request first.
        Nothing happens if it has none: it may be aborted before it got any.
        """
        for table in self._tables.pop(request.request_id, []):
            self._release(reversed(table))

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, and return True, unless a request has blocks."""
        if any(self._references):
            return False
        self._cached.clear()
        self._prefix_of.clear()
        self._writers.clear()
        return True

    def _all_choices(self, request: CacheRequest, blocks: int) -> list[list[list[int]]]:
        return [self._choices(group, request, blocks) for group in range(len(self._groups))]

    def _choices(self, group: int, request: CacheRequest, blocks: int) -> list[list[int]]:
        """Return the ids that each of the first `blocks` blocks of a hit may have."""
        skipped = self._skipped(group, blocks * self._block_size)
        prefixes = [self._prefix(group, request, i) for i in range(skipped, blocks)]
        choices = [self._cached.get(prefix, []) for prefix in prefixes]
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

    def _has_dropped(self, request: CacheRequest, blocks: int) -> bool:
        """True if a block more is cached in groups of a drafter, which recomputes it."""
        # vLLM looks up a group that is alone within the tokens that a hit may have.
        most = len(request.token_ids) - (len(self._groups) == 1)
        return all(
            (blocks + 1) * self._block_size <= most
            and self._cached.get(self._prefix(group, request, blocks))
            for group, drops in enumerate(self._drops)
            if drops
        )

    def _skipped(self, group: int, computed: int) -> int:
        """Return how many leading blocks no query from position `computed` on sees."""
        if self._groups[group].kind == "full":
            return 0
        return max(0, computed - self._groups[group].window + 1) // self._block_size

    def _prefix(self, group: int, request: CacheRequest, block: int) -> _Prefix:
        end = (block + 1) * self._block_size + self._lookahead
        return group, tuple(request.token_ids[:end])

    def _adopt(self, table: list[int], blocks: list[int]) -> None:
        for block in blocks:
            if block != _NULL:
                if not self._references[block]:
                    self._queue.remove(block)
                self._references[block] += 1
        table += blocks

    def _take(self, count: int) -> list[int]:
        """Take blocks from the head of the queue; what they cached is evicted."""
        blocks, self._queue = self._queue[:count], self._queue[count:]
        for block in blocks:
            self._references[block] = 1
            prefix = self._prefix_of.pop(block, None)
            if prefix is not None:
                self._cached[prefix].remove(block)
                del self._writers[block]
        return blocks

    def _publish(self, request: CacheRequest, tokens: int) -> None:
        """Let later requests find the full blocks of the first `tokens` tokens."""
        for group, table in enumerate(self._tables[request.request_id]):
            for i, block in enumerate(table[: tokens // self._block_size]):
                if block != _NULL and block not in self._prefix_of:
                    prefix = self._prefix(group, request, i)
                    self._cached.setdefault(prefix, []).append(block)
                    self._prefix_of[block] = prefix
                    self._writers[block] = request

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
