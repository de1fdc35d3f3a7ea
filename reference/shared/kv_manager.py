"""Manager of a KV cache: blocks of requests, and cached prefixes (SPEC.md section 16).

Both packages share it: it holds a few Python objects per request and step, and no tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..checks.kv_manager import (
    check_cached,
    check_external,
    check_hits,
    check_ids,
    check_lookup,
    check_manager,
    check_new_tokens,
    check_request,
    check_retention,
)
from ..interface.errors import MetadataError
from ..interface.kv_manager import CacheBlocks, CacheGroup, CacheRequest
from .block_pool import NULL, BlockPool, Prefix
from .cache_groups import GroupRules, rules_of

_Tables = list[list[int]]
"""Block ids of one request in each group."""


class KVCacheManager:
    """Block tables of requests in groups of layers, over one pool of `num_blocks` blocks.

    With `enable_caching` full blocks are found again by the tokens up to their ends and
    `num_hash_lookahead_tokens` behind them, until they are evicted; of windows and states, with a
    `retention_interval`, those for hits of multiples of it and of the same prompt. Requests
    without blocks leave the share `watermark` of the blocks free. Malformed input raises
    MetadataError or TypeError and changes nothing. SPEC.md section 16.
    """

    def __init__(
        self,
        num_blocks: int,
        groups: Sequence[CacheGroup],
        max_model_len: int,
        enable_caching: bool = True,
        num_hash_lookahead_tokens: int = 0,
        watermark: float = 0.0,
        retention_interval: int | None = None,
    ) -> None:
        lookahead = num_hash_lookahead_tokens
        check_manager(num_blocks, groups, max_model_len, enable_caching, lookahead, watermark)
        check_retention(groups, retention_interval)
        self._groups = rules_of(groups, lookahead, retention_interval)
        self._alignment = self._groups[0].alignment
        self._max_model_len = max_model_len
        self._caching = enable_caching
        self._watermark = int(watermark * num_blocks)  # blocks that stay free
        self._pool = BlockPool(num_blocks)
        self._tables: dict[str, _Tables] = {}
        self._num_published: dict[str, list[int]] = {}  # blocks of each table that were cached
        self._fresh: set[Prefix] = set()  # states that are computed in the current step
        self._owners: dict[str, CacheRequest] = {}
        self._unwritten: list[int] = []  # new attention blocks that a worker has to zero

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that no request has; cached ones among them."""
        return self._pool.num_free

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
                choices = [self._choices(group, request, tokens) for group in self._groups]
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
        self._check_allocation(request, lengths, new_computed_blocks)
        computed = request.num_computed_tokens + hits + external
        end = computed + num_new_tokens
        room = min(end + num_lookahead_tokens, self._max_model_len)
        # A step in flight still reads what queries before its end see, and drafts may be rejected.
        processed = max(0, computed - request.num_in_flight_tokens)
        self._free_skipped(request.request_id, processed)
        held = self._held(request.request_id, new_computed_blocks, processed)
        loaded = [
            group.missing(len(ids), computed, computed)
            for group, ids in zip(self._groups, held, strict=True)
        ]
        missing = [
            group.missing(len(ids) + len(each), end, room)
            for group, ids, each in zip(self._groups, held, loaded, strict=True)
        ]
        if not self._has_room(request, held, [*loaded, *missing]) or self._is_fresh(request, hits):
            return None
        tables = self._adopted(request.request_id, held)
        self._owners[request.request_id] = request
        # A load that the step does not wait for may write before the worker zeroes.
        self._take(tables, loaded, zeroed=not delay_cache_blocks)
        new = self._take(tables, missing)
        if not delay_cache_blocks:
            self._publish(request, end)
        return CacheBlocks(new)

    def cache_blocks(self, request: CacheRequest, num_computed_tokens: int) -> None:
        """Cache the full blocks of computed tokens whose caching was delayed."""
        self._check_owner("cache_blocks", request)
        capacity = self._capacity(request)
        check_cached(request, num_computed_tokens, self._max_model_len, capacity)
        if capacity is not None:
            self._publish(request, num_computed_tokens)

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        """Forget what blocks cache; requests keep them, and do not cache them again."""
        ids = list(block_ids)
        check_ids(ids, self._pool.num_blocks)
        for block in ids:
            self._pool.forget(block)

    def take_new_block_ids(self) -> list[int]:
        """Return the attention blocks to zero: those allocated since the last call.

        Those of external tokens whose caching is delayed are not: a connector fills them.
        """
        ids, self._unwritten = self._unwritten, []
        return ids

    def new_step_starts(self) -> None:
        """Let states be hit that were computed in the step before."""
        self._fresh.clear()

    def free(self, request: CacheRequest) -> None:
        """Free the blocks of a request that has ended or is preempted.

        Cached ones can be hit until they are evicted, the last block of the request first, but
        not those of tokens that are not computed: a step that was to do so does not run. Nothing
        happens if it has none: it may be aborted before it got any.
        """
        check_request("KVCacheManager.free", request, self._max_model_len)
        self._check_owner("free", request)
        tables = self._tables.pop(request.request_id, [])
        self._owners.pop(request.request_id, None)
        for group, table in zip(self._groups, tables, strict=False):
            for block in table[request.num_computed_tokens // group.size :]:
                if self._pool.writer(block) is request:
                    self._pool.forget(block)
            self._pool.release(reversed(table))
        self._num_published.pop(request.request_id, None)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes, and return True, unless a request has blocks."""
        return self._pool.reset()

    def _check_allocation(
        self,
        request: CacheRequest,
        lengths: tuple[int, int, int, int],
        new_computed_blocks: CacheBlocks | None,
    ) -> None:
        """Check new, hit, lookahead and external tokens, and the hit blocks."""
        check_new_tokens(request, *lengths, self._max_model_len)
        _, hits, _, external = lengths
        choices = [self._choices(group, request, hits) for group in self._groups]
        capacity = self._capacity(request)
        check_hits(request, hits, new_computed_blocks, choices, self._alignment, capacity)
        check_external(external, capacity)
        self._check_owner("allocate_slots", request)

    def _check_owner(self, method: str, request: CacheRequest) -> None:
        """Require that a request's blocks are not those of another one with its id."""
        if self._owners.get(request.request_id, request) is not request:
            operation, expected = f"KVCacheManager.{method}", "an id that no other request has"
            raise MetadataError(operation, "request_id", repr(request.request_id), expected)

    def _capacity(self, request: CacheRequest) -> int | None:
        """Return the tokens that a request's blocks hold in each group, None without blocks."""
        tables = self._tables.get(request.request_id)
        if tables is None:
            return None
        return min(len(t) * g.size for t, g in zip(tables, self._groups, strict=True))

    def _choices(self, group: GroupRules, request: CacheRequest, tokens: int) -> list[list[int]]:
        """Return the ids that each block of a hit of `tokens` tokens may have."""
        blocks, skipped = tokens // group.size, group.num_skipped(tokens)
        hashed = group.num_hashed(len(request.token_ids))
        choices = [[NULL]] * skipped
        for i in range(skipped, blocks):
            prefix = group.prefix(request, i)
            ids = self._pool.having(prefix) if i < hashed else []
            if group.drops and group.group.draft:
                ids = [block for block in ids if self._is_followed(block, prefix, request)]
            choices.append(ids)
        return choices

    def _is_followed(self, block: int, prefix: Prefix, request: CacheRequest) -> bool:
        """True if the token behind a draft block, on which its last key depends, is the request's.

        The token is unknown of a writer that ended there.
        """
        writer, end = self._pool.writer(block), len(prefix[1])
        behind = writer.token_ids[end : end + 1] if writer else []
        return behind == request.token_ids[end : end + 1] != []

    def _has_dropped(self, request: CacheRequest, tokens: int, most: int) -> bool:
        """True if a block more is cached in groups of a drafter, which recomputes it."""
        # vLLM looks up a group that is alone within the tokens that a hit may have.
        most = most if len(self._groups) == 1 else len(request.token_ids)
        return all(
            tokens + group.size <= most
            and self._pool.having(group.prefix(request, tokens // group.size))
            for group in self._groups
            if group.drops
        )

    def _free_skipped(self, request_id: str, processed: int) -> None:
        """Free the blocks that no query from `processed` on sees, and put NULL in their place."""
        for group, table in zip(self._groups, self._tables.get(request_id, []), strict=False):
            skipped = table[: group.num_skipped(processed)]
            self._pool.release(reversed(skipped))
            table[: len(skipped)] = [NULL] * len(skipped)

    def _held(self, request_id: str, hits: CacheBlocks | None, processed: int) -> _Tables:
        """Return the blocks that a request has, or adopts: NULL for those that no query sees."""
        if request_id in self._tables:
            return self._tables[request_id]
        ids = hits.get_block_ids() if hits else [[] for _ in self._groups]
        held = []
        for group, each in zip(self._groups, ids, strict=True):
            skipped = group.num_skipped(processed)
            held.append([NULL] * skipped + each[skipped:])
        return held

    def _has_room(
        self, request: CacheRequest, held: _Tables, missing: Sequence[Sequence[bool]]
    ) -> bool:
        """True if enough blocks are free for the missing ones, and for hits that are free now."""
        reserve = 0 if request.request_id in self._tables else self._watermark
        needed = sum(map(sum, missing))
        free_hits = self._pool.num_unreferenced(held)
        return needed + free_hits + reserve <= self._pool.num_free

    def _is_fresh(self, request: CacheRequest, hits: int) -> bool:
        """True if a hit state is that of a prefix that is computed in the current step."""
        return hits > 0 and any(
            group.prefix(request, hits // group.size - 1) in self._fresh for group in self._groups
        )

    def _adopted(self, request_id: str, held: _Tables) -> _Tables:
        """Return the tables of a request, which adopts its hits if it has none.

        All hits are adopted before a block is taken, which may evict one.
        """
        if request_id not in self._tables:
            self._tables[request_id] = held
            self._num_published[request_id] = [len(ids) for ids in held]
            for ids in held:
                self._pool.adopt(ids)
        return self._tables[request_id]

    def _take(
        self, tables: _Tables, missing: Sequence[Sequence[bool]], *, zeroed: bool = True
    ) -> tuple[list[int], ...]:
        """Append new blocks to the tables; return them."""
        new = tuple(self._pool.take(each) for each in missing)
        for group, table, ids in zip(self._groups, tables, new, strict=True):
            table.extend(ids)
            if zeroed and group.group.kind != "mamba":
                self._unwritten.extend(ids)
        return new

    def _publish(self, request: CacheRequest, tokens: int) -> None:
        """Let later requests find the full blocks of the first `tokens` tokens."""
        if not self._caching:
            return
        published = self._num_published[request.request_id]
        for group, table in zip(self._groups, self._tables[request.request_id], strict=True):
            full = group.num_full(request, tokens)
            for i in range(published[group.number], full):
                if table[i] != NULL and group.is_needed(i, request.num_prompt_tokens):
                    prefix = group.prefix(request, i)
                    self._pool.cache(table[i], prefix, request)
                    if group.group.kind == "mamba":
                        self._fresh.add(prefix)
            published[group.number] = max(published[group.number], full)
