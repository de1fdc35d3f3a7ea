"""The blocks of a manager, and what they hold, by what it answered (SPEC.md section 16).

The reference is never used. Ids are the manager's choice: which blocks are cached, and what it
evicted, follows from the tables that it answered, so its hits are known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.kv_manager.cached_blocks import CachedBlocks
from attnproof.harness.operations.kv_manager.engine import hit_limit
from attnproof.harness.operations.kv_manager.hits import BLOCKS, Hits
from attnproof.harness.operations.kv_manager.layout import Layout
from attnproof.harness.operations.kv_manager.memory import Key, Memory
from attnproof.harness.operations.kv_manager.requests import Requests
from attnproof.harness.operations.kv_manager.steps import Call, Schedule, Sizes

NULL = 0
_Table = list[int]
FITS = "is None although enough blocks are free", "allocates more blocks than are free"
RESETS = "is refused although no block is in use", "forgets prefixes while blocks are in use"
FREE = "lacks a block", "counts a block that is in use"
NULLS = "keep a block that no query sees any more", "lack a block that a query still sees"


class Ledger:
    """Tables of requests, cached blocks, and free ones in the order in which they were freed."""

    def __init__(self, sizes: Sizes) -> None:
        self._layout = Layout(sizes.groups, sizes.hash_lookahead, caching=sizes.caching)
        self._groups = self._layout.groups
        self._pool = range(1, sizes.num_blocks)
        self._max_model_len = sizes.max_model_len
        self.requests = Requests(self._max_model_len, sizes.state_size)
        self._memory = Memory()
        self._tables: dict[str, list[_Table]] = {}
        self._answered: dict[str, list[_Table]] = {}
        """Tables of unfinished requests, as the manager answered them."""
        self._num_published: dict[str, list[int]] = {}
        """Blocks of each table that are cached, or need not be."""
        self._watermark = int(sizes.watermark * sizes.num_blocks)
        self._cached = CachedBlocks()
        self._fresh: set[Key] = set()
        """States that are computed in the current step."""
        self.has_choice = False
        """True from the first step on in which a cached block has to go, or a hit may take one of
        several blocks: what later steps find then depends on the manager's choice."""

    def judge(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        """Yield what is wrong in the answers to a call, and keep them."""
        self._cached.time += 1
        self._answered |= seen["tables"]
        violations = list(self._apply(call, seen))
        # The state is not known after a wrong answer.
        yield from violations or self._after(seen)

    def judge_hits(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        """Yield what is wrong in the hits of a request for which the allocation then failed."""
        if "hits" in seen and call.step is not None:
            yield from self._hit_violations(call.name, call.step, seen)

    def _apply(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        if call.do == "add":
            self.requests.add(call.name, *call.numbers)
        elif call.step is not None and self.requests.uncomputed(call.name) > 0:
            yield from self._schedule(call.name, call.step, seen)
        elif call.do in ("finish", "preempt"):
            self._leave(call.name)
            if call.do == "finish":
                del self._answered[call.name]
        elif call.do == "evict":
            for table in self._tables.get(call.name, []):
                for block in table[call.numbers[0] :]:
                    self._cached.keys.pop(block, None)
        elif call.do == "reset":
            yield from self._reset(seen["reset"])

    def _leave(self, name: str) -> None:
        tables = self._tables.pop(name, [])
        for group, table in enumerate(tables):
            self._drop(group, table, range(len(table)))
        self.requests.leave(name)

    def _reset(self, answer: bool) -> Iterator[Violation]:
        if answer is bool(self._held()):
            yield Violation("reset", RESETS[answer])
        elif answer:
            self._cached = CachedBlocks()

    def _schedule(self, name: str, step: Schedule, seen: dict[str, Any]) -> Iterator[Violation]:
        if self.requests.starts_step(name, step.joins):
            self._fresh.clear()
        request = self.requests.by_name[name]
        hits, waits = 0, name not in self._tables
        adopted: list[_Table] = [[] for _ in self._groups]
        if waits:
            hits, adopted = seen["hits"], seen["hit ids"]
            violations = list(self._hit_violations(name, step, seen))
            if violations:
                yield from violations
                return
            self.has_choice |= self._cached.has_equal(block for ids in adopted for block in ids)
        elif name in self.requests.loading:
            self.requests.loading.remove(name)
            self._publish(name, request.num_computed_tokens, len(request.token_ids))
        plan = self.requests.plan(name, hits, step)
        first = plan.computed + plan.external
        end = first + plan.new
        self._skip(name, first - plan.in_flight)
        tables = self._expected(name, first, adopted)
        withdrawn = step.withdrawn and not waits
        violations = [] if withdrawn and seen["fits"] else list(self._skip_violations(name))
        if violations:
            yield from violations
            return
        room = min(end + plan.lookahead, self._max_model_len)
        loaded = [
            self._layout.missing(number, len(table), first, first)
            for number, table in enumerate(tables)
        ]
        missing = [
            each + self._layout.missing(number, len(tables[number]) + len(each), end, room)
            for number, each in enumerate(loaded)
        ]
        touched = {b for table in tables for b in table if b != NULL} - self._held()
        free = len(self._pool) - len(self._held()) - len(touched) - self._watermark * waits
        needed = sum(map(sum, missing))
        violations = list(self._room_violations(name, hits, seen["fits"], needed, free))
        if violations or not seen["fits"]:
            yield from violations
            return
        self._tables[name] = tables
        if waits:
            self._num_published[name] = [len(table) for table in tables]
        self._cached.adopt(touched)
        violations = list(self._new_blocks(name, [len(each) for each in loaded], missing, seen))
        if violations:
            yield from violations
            return
        if plan.new:
            self._publish(name, end, plan.known)
        if withdrawn:
            self._withdraw(name)
            return
        start = request.num_computed_tokens + hits  # a connector writes those behind the hits
        # A drafter computes the last keys of a step with the token that is sampled in it.
        self.requests.advance(name, hits, plan, step)
        yield from self._write_and_read(name, start, plan.external, room)

    def _room_violations(
        self, name: str, hits: int, fits: bool, needed: int, free: int
    ) -> Iterator[Violation]:
        if self._has_fresh(name, hits):
            if fits:
                yield Violation("fits", "adopts a state that is computed in the same step")
        elif fits is not (needed <= free):
            yield Violation("fits", FITS[fits], f"{needed} needed, {free} free")

    def _withdraw(self, name: str) -> None:
        """Free a request whose step does not run: its blocks hold no keys of that step."""
        computed = self.requests.by_name[name].num_computed_tokens
        self._cached.time += 1  # the step has freed blocks before
        for number, table in enumerate(self._tables[name]):
            for block in table[computed // self._layout.sizes[number] :]:
                key = self._cached.keys.pop(block, None)
                if key is not None and not self._cached.having(key):
                    self._fresh.discard(key)
        self._leave(name)

    def _hit_violations(
        self, name: str, step: Schedule, seen: dict[str, Any]
    ) -> Iterator[Violation]:
        most = hit_limit(self.requests.by_name[name], step)
        yield from self._hits(name).violations(seen["hits"], seen["hit ids"], *most)

    def _has_fresh(self, name: str, hits: int) -> bool:
        """True if hits of a request end at a state that is computed in the current step."""
        prefixes = self._prefixes(name)
        return hits > 0 and any(
            self._layout.hash_key(number, prefixes, hits // size - 1) in self._fresh
            for number, size in enumerate(self._layout.sizes)
            if self._layout.has_states(number)
        )

    def _hits(self, name: str) -> Hits:
        tokens = self.requests.by_name[name].token_ids
        return Hits(self._layout, self._cached, self._memory, tokens)

    def _prefixes(self, name: str) -> list[int]:
        return self._memory.prefixes(self.requests.by_name[name].token_ids)

    def _skip(self, name: str, computed: int) -> None:
        """Free the blocks behind the windows."""
        for number, table in enumerate(self._tables.get(name, [])):
            skipped = min(self._layout.first_block(number, computed), len(table))
            self._drop(number, table, range(skipped))

    def _skip_violations(self, name: str) -> Iterator[Violation]:
        """Yield a block that is freed too early, or too late: it decides what fits."""
        for number, right in enumerate(self._tables.get(name, [])):
            table = self._answered[name][number][: len(right)]
            if table != right:
                yield _wrong_table(table, right, f"{name}, group {number}")

    def _expected(self, name: str, computed: int, adopted: Sequence[_Table]) -> list[_Table]:
        """Return the request's blocks before new ones are added."""
        if name in self._tables:
            return self._tables[name]
        tables = []
        for number, ids in enumerate(adopted):
            skipped = self._layout.first_block(number, computed)
            tables.append([NULL] * skipped + ids[skipped:])
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
        self, name: str, loaded: list[int], missing: list[list[bool]], seen: dict[str, Any]
    ) -> Iterator[Violation]:
        """Take the new blocks into the tables; yield those that were not free to take.

        The first `loaded` ones of a group are of external tokens, which only the table names.
        """
        held = self._held()
        uncached = len(self._pool) - len(held) - self._cached.num_free
        new: list[int] = []
        for number, others in enumerate(seen["new ids"]):
            before = len(self._tables[name][number])
            ids = [*self._answered[name][number][before : before + loaded[number]], *others]
            if len(ids) != len(missing[number]):
                detail = f"group {number}: {len(ids)}, not {len(missing[number])} new ones"
                yield Violation("blocks", BLOCKS, detail)
                return
            for block, needed in zip(ids, missing[number], strict=True):
                if not needed and block == NULL:
                    continue
                if not needed:
                    yield Violation("nulls", NULLS[0], f"block {block} of group {number}")
                elif block not in self._pool:
                    yield Violation("new ids", "name NULL or no block of the pool", f"{block}")
                elif block in held or block in new:
                    yield Violation("new ids", "name a block that is in use", f"block {block}")
                new.append(block)
            self._tables[name][number] += ids
        self.has_choice |= len(new) > uncached
        yield from self._cached.evict(new, len(new) - uncached)

    def _write_and_read(
        self, name: str, start: int, external: int, room: int
    ) -> Iterator[Violation]:
        """Write the keys of a step, of drafts behind them rubbish, and read what queries see."""
        first, end = start + external, self.requests.by_name[name].num_computed_tokens
        if external:
            yield from self._write(name, start, first, first)
        # A step reads the state behind the tokens before it, and may overwrite it.
        yield from self._reads(name, first, first, states_only=True)
        if end > first:
            yield from self._write(name, first, end, room)
        for each in self._tables:
            computed = self.requests.by_name[each].num_computed_tokens
            yield from self._reads(each, first if each == name else computed, computed)

    def _write(self, name: str, first: int, end: int, room: int) -> Iterator[Violation]:
        prefixes = self._prefixes(name)
        for number, table in enumerate(self._tables[name]):
            for position in self._layout.written(number, first, end, room):
                index, offset = self._layout.slot(number, position)
                block = table[index]
                key = self._layout.key(number, prefixes, position) if position < end else None
                same = key == self._memory.at(block, offset)
                if block == NULL or same:
                    continue
                if self._is_shared(block, name, number):
                    detail = f"block {block} of group {number}, position {position}"
                    yield Violation("tables", "share a block that one request writes", detail)
                    return
                self._memory.write(block, offset, key)

    def _is_shared(self, block: int, name: str, number: int) -> bool:
        """True if the block is in a table beside that of the request's group."""
        return any(
            block in table
            for each, tables in self._tables.items()
            for group, table in enumerate(tables)
            if (each, group) != (name, number)
        )

    def _reads(
        self, name: str, first: int, end: int, *, states_only: bool = False
    ) -> Iterator[Violation]:
        """Yield the first key that queries from `first` on see and that is not the request's."""
        prefixes = self._prefixes(name)
        for number, table in enumerate(self._tables[name]):
            if states_only and not self._layout.has_states(number):
                continue
            for position in self._layout.seen(number, first, end):
                index, offset = self._layout.slot(number, position)
                block, key = table[index], self._layout.key(number, prefixes, position)
                if self._memory.at(block, offset) != key:
                    detail = f"{name}: block {block} of group {number}, position {position}"
                    yield Violation("tables", "name a block without the request's keys", detail)
                    return

    def _publish(self, name: str, end: int, known: int) -> None:
        """Count the full blocks of the computed tokens as cached, if their lookahead is known."""
        prefixes, published = self._prefixes(name), self._num_published[name]
        for number, table in enumerate(self._tables[name]):
            full = self._layout.num_full(number, end, known)
            for i in range(published[number], full):
                if table[i] != NULL and self._layout.is_cached(number, i):
                    key = self._layout.hash_key(number, prefixes, i)
                    self._cached.keys[table[i]] = key
                    self._fresh |= {key} if self._layout.has_states(number) else set()
            published[number] = max(published[number], full)

    def _after(self, seen: dict[str, Any]) -> Iterator[Violation]:
        """Compare the tables and the number of free blocks with what the calls make of them."""
        for name, tables in self._answered.items():
            expected = self._tables.get(name, [[] for _ in self._groups])
            for number, (table, right) in enumerate(zip(tables, expected, strict=True)):
                if table != right:
                    yield _wrong_table(table, right, f"{name}, group {number}")
                    return
        free = len(self._pool) - len(self._held())
        if seen["free"] != free:
            yield Violation("free", FREE[seen["free"] > free], f"{seen['free']}, not {free}")


def _wrong_table(table: _Table, right: _Table, detail: str) -> Violation:
    """Return what is wrong with a table, whose blocks should be those of `right`."""
    if len(table) != len(right):
        return Violation("blocks", BLOCKS, detail)
    for block, expected in zip(table, right, strict=True):
        if (block == NULL) != (expected == NULL):
            return Violation("nulls", NULLS[block == NULL], detail)
    return Violation("tables", "name other blocks than were allocated", detail)
