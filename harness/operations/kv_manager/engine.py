"""An engine's calls of a KV-cache manager, and what it answers.

How many tokens a step computes depends on the hits, so the calls are made here and not by the
statements of a script.
"""

from __future__ import annotations

from typing import Any

from attnproof.harness.operations.kv_manager.requests import Requests
from attnproof.reference import CacheBlocks


class Engine:
    """Requests of an engine, and the manager of its cache."""

    def __init__(self, manager: Any, max_model_len: int, chunk_unit: int = 1) -> None:
        self._manager = manager
        self._requests = Requests(max_model_len, chunk_unit)
        self._unfinished: list[str] = []
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
        self._unfinished.append(name)
        self._waiting.add(name)

    def schedule(self, name: str, chunk: int, lookahead: int, sampled: int, joins: bool) -> None:
        """Allocate blocks for up to `chunk` tokens, behind the hits if it has no blocks yet.

        It `joins` the step of the request before it, or begins one.
        """
        self.seen = {}
        if self._requests.uncomputed(name) <= 0:
            return  # it has max_model_len tokens
        if self._requests.starts_step(name, joins):
            self._manager.new_step_starts()
        request = self._requests.by_name[name]
        hits, blocks = 0, None
        if name in self._waiting:
            blocks, hits = self._manager.get_computed_blocks(request)
            self.seen |= {"hits": hits, "hit ids": _ids(blocks)}
        new = self._requests.new_tokens(name, hits, chunk)
        allocated = self._manager.allocate_slots(request, new, hits, blocks, lookahead)
        self.seen |= {"fits": allocated is not None, "new ids": _ids(allocated)}
        if allocated is not None:
            self._waiting.discard(name)
            self._requests.advance(name, hits + new, sampled)

    def finish(self, name: str) -> None:
        """Free a request that has ended or is aborted."""
        self.seen = {}
        self._requests.end_step()
        self._unfinished.remove(name)
        self._waiting.discard(name)
        self._manager.free(self._requests.by_name[name])

    def preempt(self, name: str) -> None:
        """Free a request that waits from now on, with the tokens that it has."""
        self.seen = {}
        self._requests.end_step()
        request = self._requests.by_name[name]
        self._manager.free(request)
        request.num_computed_tokens = 0
        self._waiting.add(name)

    def reset(self) -> None:
        """Forget all prefixes, which works if no request has blocks."""
        self.seen = {}
        self.seen["reset"] = self._manager.reset_prefix_cache()

    def allocate_nothing(self, name: str) -> None:
        """Allocate no token, which is refused."""
        self.seen = {}
        self._manager.allocate_slots(self._requests.by_name[name], 0)

    def look(self) -> dict[str, Any]:
        """Return the last answers, the blocks of all requests, and the number of free blocks."""
        tables = [list(map(list, self._manager.get_block_ids(name))) for name in self._unfinished]
        free = self._manager.num_free_blocks
        return self.seen | {"names": list(self._unfinished), "tables": tables, "free": free}


def _ids(blocks: CacheBlocks | None) -> list[list[int]] | None:
    return None if blocks is None else list(map(list, blocks.get_block_ids()))
