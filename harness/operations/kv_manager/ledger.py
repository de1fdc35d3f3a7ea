"""The blocks of a manager, and what they hold, by what it answered (SPEC.md section 16).

The reference is never used. Ids are the manager's choice: which blocks are cached, and what it
evicted, follows from the tables that it answered, so its hits are known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.kv_manager.cached_blocks import CachedBlocks
from attnproof.harness.operations.kv_manager.memory import Key, Memory
from attnproof.harness.operations.kv_manager.requests import Requests
from attnproof.harness.operations.kv_manager.steps import Call, Sizes
from attnproof.reference import CacheGroup

NULL = 0
_Table = list[int]
FITS = "is None although enough blocks are free", "allocates more blocks than are free"
RESETS = "is refused although no block is in use", "forgets prefixes while blocks are in use"
FREE = "lacks a block", "counts a block that is in use"
BLOCKS = "have another number of blocks than the request's tokens need"
NULLS = "keep a block that no query sees any more", "lack a block that a query still sees"
HITS = "are shorter than the cached prefix", "are longer than the cached prefix"


class Ledger:
    """Tables of requests, cached blocks, and free ones in the order in which they were freed."""

    def __init__(self, sizes: Sizes) -> None:
        self._groups = sizes.groups
        self._size = sizes.groups[0].block_size
        self._pool = range(1, sizes.num_blocks)
        self._max_model_len = sizes.max_model_len
        self._caching = sizes.caching
        self.requests = Requests(self._max_model_len)
        self._memory = Memory(self._size)
        self._tables: dict[str, list[_Table]] = {}
        self._cached = CachedBlocks()
        self.has_choice = False
        """True from the first step on in which a cached block has to go, or a hit may take one of
        several blocks: what later steps find then depends on the manager's choice."""

    def judge(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        """Yield what is wrong in the answers to a call, and keep them."""
        self._cached.time += 1
        violations = list(self._apply(call, seen))
        # The state is not known after a wrong answer.
        yield from violations or self._after(seen)

    def judge_hits(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        """Yield what is wrong in the hits of a request for which the allocation then failed."""
        if "hits" in seen:
            yield from self._hit_violations(call.name, seen["hits"], seen["hit ids"])

    def _apply(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        if call.do == "add":
            self.requests.add(call.name, *call.numbers)
        elif call.do == "schedule" and self.requests.uncomputed(call.name) > 0:
            yield from self._schedule(call, seen)
        elif call.do in ("finish", "preempt"):
            self._leave(call.name)
        elif call.do == "reset":
            yield from self._reset(seen["reset"])

    def _leave(self, name: str) -> None:
        tables = self._tables.pop(name, [])
        for group, table in enumerate(tables):
            self._drop(group, table, range(len(table)))
        self.requests.by_name[name].num_computed_tokens = 0

    def _reset(self, answer: bool) -> Iterator[Violation]:
        if answer is bool(self._held()):
            yield Violation("reset", RESETS[answer])
        elif answer:
            self._cached = CachedBlocks()

    def _schedule(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        chunk, lookahead, sampled = call.numbers
        request = self.requests.by_name[call.name]
        hits = 0
        adopted: list[_Table] = [[] for _ in self._groups]
        if call.name not in self._tables:
            hits, adopted = seen["hits"], seen["hit ids"]
            violations = list(self._hit_violations(call.name, hits, adopted))
            if violations:
                yield from violations
                return
            self.has_choice |= self._cached.has_equal(block for ids in adopted for block in ids)
        first = request.num_computed_tokens + hits
        end = first + min(chunk, len(request.token_ids) - first)
        self._skip(call.name, first)
        tables = self._expected(call.name, first, adopted)
        violations = list(self._skip_violations(call.name, seen))
        if violations:
            yield from violations
            return
        room = min(end + lookahead, self._max_model_len)
        missing = [max(0, -(-room // self._size) - len(table)) for table in tables]
        touched = {b for table in tables for b in table if b != NULL} - self._held()
        free = len(self._pool) - len(self._held()) - len(touched)
        if seen["fits"] is not (sum(missing) <= free):
            yield Violation("fits", FITS[seen["fits"]], f"{sum(missing)} needed, {free} free")
            return
        if not seen["fits"]:
            return
        self._tables[call.name] = tables
        self._cached.adopt(touched)
        violations = list(self._new_blocks(call.name, missing, seen))
        if not violations:
            violations = list(self._write_and_read(call.name, first, end, room))
        yield from violations
        self._publish(call.name, end)
        self.requests.advance(call.name, end - request.num_computed_tokens, sampled)

    def _hit_violations(
        self, name: str, hits: int, adopted: Sequence[Sequence[int]]
    ) -> Iterator[Violation]:
        """Yield a wrong number of hits, or blocks of hits that are not the request's."""
        prefixes = self._prefixes(name)
        longest = self._longest(prefixes)
        if hits != longest:
            yield Violation("hits", HITS[hits > longest], f"{hits}, not {longest}")
            return
        blocks = hits // self._size
        for number, group in enumerate(self._groups):
            ids = adopted[number]
            if len(ids) != blocks:
                yield Violation("hit ids", BLOCKS, f"group {number}: {ids}")
                return
            for i in range(self._first_seen(group, hits), blocks):
                if self._cached.keys.get(ids[i]) != self._key(number, prefixes, i):
                    detail = f"block {ids[i]} of group {number} at index {i}"
                    yield Violation("hit ids", "name a block that holds other tokens", detail)
                    return

    def _longest(self, prefixes: list[int]) -> int:
        """Return the tokens of the longest cached prefix that every group accepts."""
        cached = set(self._cached.keys.values())
        for blocks in range((len(prefixes) - 1) // self._size, 0, -1):
            if all(
                self._key(number, prefixes, i) in cached
                for number, group in enumerate(self._groups)
                for i in range(self._first_seen(group, blocks * self._size), blocks)
            ):
                return blocks * self._size
        return 0

    def _prefixes(self, name: str) -> list[int]:
        return self._memory.prefixes(self.requests.by_name[name].token_ids)

    def _first_seen(self, group: CacheGroup, position: int) -> int:
        """Return the first block with a key that a query at the position sees."""
        return self._first_key(group, position) // self._size

    def _first_key(self, group: CacheGroup, position: int) -> int:
        """Return the position of the first key that a query at the position sees."""
        return max(0, position - group.window + 1) if group.kind == "window" else 0

    def _key(self, group: int, prefixes: list[int], block: int) -> Key:
        """Return the last key of a full block, on which all of the block depends."""
        return group, prefixes[(block + 1) * self._size - 1]

    def _skip(self, name: str, computed: int) -> None:
        """Free the blocks behind the windows."""
        for number, table in enumerate(self._tables.get(name, [])):
            skipped = min(self._first_seen(self._groups[number], computed), len(table))
            self._drop(number, table, range(skipped))

    def _skip_violations(self, name: str, seen: dict[str, Any]) -> Iterator[Violation]:
        """Yield a block that is freed too early, or too late: it decides what fits."""
        seen_tables = dict(zip(seen["names"], seen["tables"], strict=True))
        for number, right in enumerate(self._tables.get(name, [])):
            table = seen_tables[name][number][: len(right)]
            if table != right:
                yield Violation("tables", _wrong_table(table, right), f"{name}, group {number}")

    def _expected(self, name: str, computed: int, adopted: Sequence[Sequence[int]]) -> list[_Table]:
        """Return the request's blocks before new ones are added."""
        if name in self._tables:
            return self._tables[name]
        tables = []
        for group, ids in zip(self._groups, adopted, strict=True):
            skipped = self._first_seen(group, computed)
            tables.append([NULL if i < skipped else block for i, block in enumerate(ids)])
        return tables

    def _drop(self, group: int, table: _Table, indices: range) -> None:
        """Put NULL in the place of blocks; those that no table has then are free."""
        dropped = {i: table[i] for i in indices if table[i] != NULL}
        for i in dropped:
            table[i] = NULL
        held = self._held()
        for i, block in dropped.items():
            if block not in held:
                self._cached.free(block, group, i)

    def _held(self) -> set[int]:
        """Return the blocks in the tables."""
        tables = self._tables.values()
        return {block for each in tables for table in each for block in table if block != NULL}

    def _new_blocks(
        self, name: str, missing: list[int], seen: dict[str, Any]
    ) -> Iterator[Violation]:
        """Take the new blocks into the tables; yield those that were not free to take."""
        held = self._held()
        uncached = len(self._pool) - len(held) - self._cached.num_free
        new: list[int] = []
        for number, ids in enumerate(seen["new ids"]):
            if len(ids) != missing[number]:
                detail = f"group {number}: {len(ids)}, not {missing[number]}"
                yield Violation("new ids", "are not as many blocks as the tokens need", detail)
                return
            for block in ids:
                if block not in self._pool:
                    yield Violation("new ids", "name NULL or no block of the pool", f"{block}")
                elif block in held or block in new:
                    yield Violation("new ids", "name a block that is in use", f"block {block}")
                new.append(block)
            self._tables[name][number] += ids
        self.has_choice |= len(new) > uncached
        yield from self._cached.evict(new, len(new) - uncached)

    def _write_and_read(self, name: str, first: int, end: int, room: int) -> Iterator[Violation]:
        """Write the keys of a step, of drafts behind them rubbish, and read what queries see."""
        prefixes = self._prefixes(name)
        for number, table in enumerate(self._tables[name]):
            for position in range(first, room):
                block = table[position // self._size]
                key = (number, prefixes[position]) if position < end else None
                same = key == self._memory.at(block, position)
                if not same and self._is_shared(block, name, number):
                    detail = f"block {block} of group {number}, position {position}"
                    yield Violation("tables", "share a block that one request writes", detail)
                    return
                self._memory.write(block, position, key)
        for each in self._tables:
            computed = end if each == name else self.requests.by_name[each].num_computed_tokens
            start = first if each == name else computed
            yield from self._reads(each, start, computed)

    def _is_shared(self, block: int, name: str, number: int) -> bool:
        """True if the block is in a table beside that of the request's group."""
        return any(
            block in table
            for each, tables in self._tables.items()
            for group, table in enumerate(tables)
            if (each, group) != (name, number)
        )

    def _reads(self, name: str, first: int, end: int) -> Iterator[Violation]:
        """Yield the first key that queries from `first` on see and that is not the request's."""
        prefixes = self._prefixes(name)
        for number, group in enumerate(self._groups):
            for position in range(self._first_key(group, first), end):
                block = self._tables[name][number][position // self._size]
                if self._memory.at(block, position) != (number, prefixes[position]):
                    detail = f"{name}: block {block} of group {number}, position {position}"
                    yield Violation("tables", "name a block without the request's keys", detail)
                    return

    def _publish(self, name: str, end: int) -> None:
        """Count the full blocks of the computed tokens as cached."""
        if self._caching:
            prefixes = self._prefixes(name)
            for number, table in enumerate(self._tables[name]):
                for i, block in enumerate(table[: end // self._size]):
                    if block != NULL:
                        self._cached.keys.setdefault(block, self._key(number, prefixes, i))

    def _after(self, seen: dict[str, Any]) -> Iterator[Violation]:
        """Compare the tables and the number of free blocks with what the calls make of them."""
        for name, tables in zip(seen["names"], seen["tables"], strict=True):
            expected = self._tables.get(name, [[] for _ in self._groups])
            for number, (table, right) in enumerate(zip(tables, expected, strict=True)):
                if table != right:
                    yield Violation("tables", _wrong_table(table, right), f"{name}, group {number}")
                    return
        free = len(self._pool) - len(self._held())
        if seen["free"] != free:
            yield Violation("free", FREE[seen["free"] > free], f"{seen['free']}, not {free}")


def _wrong_table(table: _Table, right: _Table) -> str:
    """Return what is wrong with a table, whose blocks should be those of `right`."""
    if len(table) != len(right):
        return BLOCKS
    for block, expected in zip(table, right, strict=True):
        if block == NULL and expected != NULL:
            return NULLS[1]
        if block != NULL and expected == NULL:
            return NULLS[0]
    return "name other blocks than were allocated"
