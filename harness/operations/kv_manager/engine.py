"""An engine's calls of a KV-cache manager, and what it answers.

How many tokens a step computes depends on the hits, so the calls are made here and not by the
statements of a script.
"""

from __future__ import annotations

from typing import Any

from attnproof.harness.operations.kv_manager.requests import Requests
from attnproof.harness.operations.kv_manager.steps import Schedule
from attnproof.reference import CacheBlocks, CacheRequest


class Engine:
    """Requests of an engine, and the manager of its cache."""

    def __init__(self, manager: Any, max_model_len: int, state_size: int = 0) -> None:
        self._manager = manager
        self._requests = Requests(max_model_len, state_size)
        self.tables: dict[str, list[list[int]] | None] = {}
        """Block tables of each unfinished request in the last step, None of a new one."""
        self._waiting: set[str] = set()
        """Requests without blocks: new and preempted ones."""
        self.exact = True
        """True if the answers are the same for all managers (`Ledger.has_choice`)."""
        self.seen: dict[str, Any] = {}
        """Answers in the last step."""

    def add(self, name: str, tokens: int, like: str, shared: int, rejoins: bool) -> None:
        """Add a request (`Requests.add`)."""
        self.seen = {}
        self._requests.add(name, tokens, like, shared, rejoins)
        self.tables[name] = None
        self._waiting.add(name)

    def schedule(self, name: str, **numbers: Any) -> None:
        """Allocate blocks for a step, behind the hits if the request has no blocks yet.

        `numbers` are those of `Schedule`.
        """
        self.seen = {}
        step = Schedule(**numbers)
        if self._requests.uncomputed(name) <= 0:
            return  # it has max_model_len tokens
        if self._requests.starts_step(name, step.joins):
            self._manager.new_step_starts()
        request = self._requests.by_name[name]
        hits, blocks = 0, None
        waits = name in self._waiting
        if waits:
            blocks, hits = self._manager.get_computed_blocks(request, *hit_limit(request, step))
            self.seen |= {"hits": hits, "hit ids": _ids(blocks)}
        elif name in self._requests.loading:
            self._requests.loading.remove(name)
            self._manager.cache_blocks(request, request.num_computed_tokens)
        plan = self._requests.plan(name, hits, step)
        external = (plan.external, not plan.new) if plan.external else ()
        with self._requests.shown(name, plan):
            allocated = self._manager.allocate_slots(
                request, plan.new, hits, blocks, plan.lookahead, *external
            )
        self.seen |= {"fits": allocated is not None, "new ids": _ids(allocated)}
        if hasattr(self._manager, "take_new_block_ids"):  # a worker need not zero blocks
            self.seen["zeroed"] = list(self._manager.take_new_block_ids())
        if allocated is None:
            return
        if step.withdrawn and not waits:
            self._leave(name)
            return
        self._waiting.discard(name)
        self._requests.advance(name, hits, plan, step)

    def finish(self, name: str) -> None:
        """Free a request that has ended or is aborted."""
        self.seen = {}
        del self.tables[name]
        self._leave(name)

    def preempt(self, name: str) -> None:
        """Free a request that waits from now on, with the tokens that it has."""
        self.seen = {}
        self._leave(name)

    def _leave(self, name: str) -> None:
        self._manager.free(self._requests.by_name[name])
        self._requests.leave(name)
        self._waiting.add(name)

    def evict(self, name: str, first: int) -> None:
        """Evict the blocks of a request from one on: their load failed."""
        self.seen = {}
        tables = self._manager.get_block_ids(name)
        self._manager.evict_blocks({block for table in tables for block in table[first:] if block})

    def reset(self) -> None:
        """Forget all prefixes, which works if no request has blocks."""
        self.seen = {}
        self.seen["reset"] = self._manager.reset_prefix_cache()

    def allocate_nothing(self, name: str) -> None:
        """Allocate no token, which is refused."""
        self.seen = {}
        self._manager.allocate_slots(self._requests.by_name[name], 0)

    def look(self) -> dict[str, Any]:
        """Return the last answers, the tables that have changed, and the number of free blocks."""
        tables = {name: list(map(list, self._manager.get_block_ids(name))) for name in self.tables}
        changed = {name: own for name, own in tables.items() if own != self.tables[name]}
        self.tables |= tables
        return self.seen | {"tables": changed, "free": self._manager.num_free_blocks}


def hit_limit(request: CacheRequest, step: Schedule) -> tuple[int, ...]:
    """Return the most tokens that a hit may have, none for all but the last one."""
    return (max(0, len(request.token_ids) - 1 - step.short),) if step.short else ()


def _ids(blocks: CacheBlocks | None) -> list[list[int]] | None:
    return None if blocks is None else list(map(list, blocks.get_block_ids()))
