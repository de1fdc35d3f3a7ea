"""The blocks of a manager by what it answered (SPEC.md section 16).

The reference is never used. Ids are the manager's choice: which blocks are cached, and what it
evicted, follows from the tables that it answered, so its hits are known exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.kv_manager.cached_blocks import CachedBlocks
from attnproof.harness.operations.kv_manager.contents import Contents
from attnproof.harness.operations.kv_manager.engine import hit_limit
from attnproof.harness.operations.kv_manager.hits import BLOCKS, Hits
from attnproof.harness.operations.kv_manager.layout import Layout
from attnproof.harness.operations.kv_manager.memory import NULL, Key, Memory, Table
from attnproof.harness.operations.kv_manager.requests import Requests
from attnproof.harness.operations.kv_manager.steps import Call, Schedule, Sizes
from attnproof.harness.operations.kv_manager.wrong_answer import WrongAnswerError

FITS = "is None although enough blocks are free", "allocates more blocks than are free"
RESETS = "is refused although no block is in use", "forgets prefixes while blocks are in use"
FREE = "lacks a block", "counts a block that is in use"
ZEROED = "leave out a new block", "name a block that a load fills, or that is not new"
NULLS = "keep a block that no query sees any more", "lack a block that a query still sees"


class Ledger:
    """Tables of requests, cached blocks, and free ones in the order in which they were freed."""

    def __init__(self, sizes: Sizes) -> None:
        self._layout = Layout(
            sizes.groups, sizes.hash_lookahead, caching=sizes.caching, retention=sizes.retention
        )
        self._pool = range(1, sizes.num_blocks)
        self._max_model_len = sizes.max_model_len
        self.requests = Requests(self._max_model_len, sizes.state_size)
        self._memory = Memory()
        self._tables: dict[str, list[Table]] = {}
        self._contents = Contents(self._layout, self._memory, self._tables, self.requests)
        self._answered: dict[str, list[Table]] = {}
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
        """Yield what is wrong first in the answers to a call, and keep them."""
        self._cached.time += 1
        self._answered |= seen["tables"]
        try:
            self._apply(call, seen)
            self._compare(seen)
        except WrongAnswerError as wrong:  # the state is not known after it
            yield wrong.violation

    def judge_hits(self, call: Call, seen: dict[str, Any]) -> Iterator[Violation]:
        """Yield what is wrong in the hits of a request for which the allocation then failed."""
        if "hits" in seen and call.step is not None:
            try:
                self._check_hits(call.name, call.step, seen)
            except WrongAnswerError as wrong:
                yield wrong.violation

    def _apply(self, call: Call, seen: dict[str, Any]) -> None:
        if call.do == "add":
            self.requests.add(call.name, *call.numbers)
        elif call.step is not None and self.requests.uncomputed(call.name) > 0:
            self._schedule(call.name, call.step, seen)
        elif call.do in ("finish", "preempt"):
            self._leave(call.name)
            if call.do == "finish":
                self._answered.pop(call.name, None)
        elif call.do == "evict":
            for table in self._tables.get(call.name, []):
                for block in table[call.numbers[0] :]:
                    self._cached.keys.pop(block, None)
        elif call.do == "reset":
            if seen["reset"] is bool(self._held()):
                raise WrongAnswerError("reset", RESETS[seen["reset"]])
            if seen["reset"]:
                self._cached = CachedBlocks()

    def _leave(self, name: str) -> None:
        for group, table in enumerate(self._tables.pop(name, [])):
            self._drop(group, table, range(len(table)))
        self.requests.leave(name)

    def _schedule(self, name: str, step: Schedule, seen: dict[str, Any]) -> None:
        if self.requests.starts_step(name, step.joins):
            self._fresh.clear()
        request, waits = self.requests.by_name[name], name not in self._tables
        withdrawn = step.withdrawn and not waits
        hits, adopted = self._hits_of(name, step, seen) if waits else (0, [])
        if name in self.requests.loading:
            self.requests.loading.remove(name)
            self._publish(name, request.num_computed_tokens, len(request.token_ids))
        plan = self.requests.plan(name, hits, step)
        room = min(plan.end + plan.lookahead, self._max_model_len)
        self._skip(name, plan.first - plan.in_flight)
        tables = self._expected(name, plan.first, adopted)
        if not (withdrawn and seen["fits"]):
            self._check_skipped(name)
        loaded = [
            self._layout.missing(group, len(table), plan.first, plan.first)
            for group, table in enumerate(tables)
        ]
        missing = [
            each + self._layout.missing(group, len(tables[group]) + len(each), plan.end, room)
            for group, each in enumerate(loaded)
        ]
        touched = {b for table in tables for b in table if b != NULL} - self._held()
        free = len(self._pool) - len(self._held()) - len(touched) - self._watermark * waits
        self._check_room(name, hits, seen["fits"], sum(map(sum, missing)), free)
        if not seen["fits"]:
            self._check_zeroed(seen, set())
            return
        self._tables[name] = tables
        if waits:
            self._num_published[name] = [len(table) for table in tables]
        self._cached.adopt(touched)
        self._take(name, [len(each) for each in loaded], missing, seen)
        self._check_zeroed(seen, self._unwritten(name, missing) if plan.new else set())
        if plan.new:
            self._publish(name, plan.end, plan.known)
        if withdrawn:
            self._withdraw(name)
            return
        start = request.num_computed_tokens + hits  # a connector writes those behind the hits
        # A drafter computes the last keys of a step with the token that is sampled in it.
        self.requests.advance(name, hits, plan, step)
        self._contents.write_and_read(name, start, plan.external, room)

    def _hits_of(
        self, name: str, step: Schedule, seen: dict[str, Any]
    ) -> tuple[int, Sequence[Table]]:
        """Return the hits of a waiting request and their blocks, which are right."""
        self._check_hits(name, step, seen)
        ids = seen["hit ids"]
        self.has_choice |= self._cached.has_equal(block for table in ids for block in table)
        return seen["hits"], ids

    def _check_hits(self, name: str, step: Schedule, seen: dict[str, Any]) -> None:
        request = self.requests.by_name[name]
        hits = Hits(self._layout, self._cached, self._memory, request.token_ids)
        hits.check(seen["hits"], seen["hit ids"], *hit_limit(request, step))

    def _check_room(self, name: str, hits: int, fits: bool, needed: int, free: int) -> None:
        if self._has_fresh(name, hits):
            if fits:
                raise WrongAnswerError("fits", "adopts a state that is computed in the same step")
        elif fits is not (needed <= free):
            raise WrongAnswerError("fits", FITS[fits], f"{needed} needed, {free} free")

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

    def _has_fresh(self, name: str, hits: int) -> bool:
        """True if hits of a request end at a state that is computed in the current step."""
        prefixes = self._contents.prefixes(name)
        return hits > 0 and any(
            self._layout.hash_key(number, prefixes, hits // size - 1) in self._fresh
            for number, size in enumerate(self._layout.sizes)
            if self._layout.has_states(number)
        )

    def _skip(self, name: str, computed: int) -> None:
        """Free the blocks behind the windows."""
        for number, table in enumerate(self._tables.get(name, [])):
            skipped = min(self._layout.first_block(number, computed), len(table))
            self._drop(number, table, range(skipped))

    def _check_skipped(self, name: str) -> None:
        """Require that no block is freed too early, or too late: it decides what fits."""
        for number, right in enumerate(self._tables.get(name, [])):
            table = self._answered[name][number][: len(right)]
            _check_table(table, right, f"{name}, group {number}")

    def _expected(self, name: str, computed: int, adopted: Sequence[Table]) -> list[Table]:
        """Return the request's blocks before new ones are added."""
        if name in self._tables:
            return self._tables[name]
        tables = []
        for number, ids in enumerate(adopted):
            skipped = self._layout.first_block(number, computed)
            tables.append([NULL] * skipped + ids[skipped:])
        return tables

    def _drop(self, group: int, table: Table, indices: range) -> None:
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

    def _take(
        self, name: str, loaded: list[int], missing: list[list[bool]], seen: dict[str, Any]
    ) -> None:
        """Take the new blocks into the tables, which were free to take.

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
                raise WrongAnswerError("blocks", BLOCKS, detail)
            for block, needed in zip(ids, missing[number], strict=True):
                if needed or block != NULL:
                    self._check_new(block, number, needed, held.union(new))
                    new.append(block)
            self._tables[name][number] += ids
        self.has_choice |= len(new) > uncached
        self._cached.evict(new, len(new) - uncached)

    def _unwritten(self, name: str, missing: list[list[bool]]) -> set[int]:
        """Return the new attention blocks, which a worker zeroes unless a load fills them later."""
        return {
            block
            for group, table in enumerate(self._tables[name])
            if missing[group] and not self._layout.has_states(group)
            for block in table[-len(missing[group]) :]
        }

    def _check_zeroed(self, seen: dict[str, Any], unwritten: set[int]) -> None:
        """Require that a worker zeroes the new blocks before the step, each once."""
        zeroed = seen.get("zeroed")  # None of a manager that does not say it
        if zeroed is not None and sorted(zeroed) != sorted(unwritten):
            wrong = sorted(unwritten.difference(zeroed)) or zeroed
            raise WrongAnswerError("zeroed", ZEROED[unwritten <= set(zeroed)], f"blocks {wrong}")

    def _check_new(self, block: int, group: int, needed: bool, held: set[int]) -> None:
        """Require that a block is free and of the pool."""
        if not needed:
            raise WrongAnswerError("nulls", NULLS[0], f"block {block} of group {group}")
        if block not in self._pool:
            raise WrongAnswerError("new ids", "name NULL or no block of the pool", f"{block}")
        if block in held:
            raise WrongAnswerError("new ids", "name a block that is in use", f"block {block}")

    def _publish(self, name: str, end: int, known: int) -> None:
        """Count the full blocks of the computed tokens as cached, if their lookahead is known."""
        prefixes, published = self._contents.prefixes(name), self._num_published[name]
        prompt = self.requests.by_name[name].num_prompt_tokens
        for number, table in enumerate(self._tables[name]):
            full = self._layout.num_full(number, end, known)
            for i in range(published[number], full):
                if table[i] != NULL and self._layout.is_cached(number, i, prompt):
                    key = self._layout.hash_key(number, prefixes, i)
                    self._cached.keys[table[i]] = key
                    self._fresh |= {key} if self._layout.has_states(number) else set()
            published[number] = max(published[number], full)

    def _compare(self, seen: dict[str, Any]) -> None:
        """Compare the tables and the number of free blocks with what the calls make of them."""
        for name, tables in self._answered.items():
            expected = self._tables.get(name, [[] for _ in tables])
            for number, (table, right) in enumerate(zip(tables, expected, strict=True)):
                _check_table(table, right, f"{name}, group {number}")
        free = len(self._pool) - len(self._held())
        if seen["free"] != free:
            raise WrongAnswerError("free", FREE[seen["free"] > free], f"{seen['free']}, not {free}")


def _check_table(table: Table, right: Table, detail: str) -> None:
    """Require that a table has the blocks of `right`."""
    if len(table) != len(right):
        raise WrongAnswerError("blocks", BLOCKS, detail)
    for block, expected in zip(table, right, strict=True):
        if (block == NULL) != (expected == NULL):
            raise WrongAnswerError("nulls", NULLS[block == NULL], detail)
    if table != right:
        raise WrongAnswerError("tables", "name other blocks than were allocated", detail)
