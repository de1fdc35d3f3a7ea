"""Cached prefixes of requests: how long a hit has to be, and which blocks it may name."""

from __future__ import annotations

from collections.abc import Sequence

from attnproof.harness.operations.kv_manager.cached_blocks import CachedBlocks
from attnproof.harness.operations.kv_manager.layout import Layout
from attnproof.harness.operations.kv_manager.memory import Memory
from attnproof.harness.operations.kv_manager.wrong_answer import WrongAnswerError

BLOCKS = "are not as many as the tokens need"
HITS = "are shorter than the cached prefix", "are longer than the cached prefix"


class Hits:
    """Hits of one request, by what the cached blocks hold."""

    def __init__(
        self, layout: Layout, cached: CachedBlocks, memory: Memory, tokens: list[int]
    ) -> None:
        self._layout = layout
        self._cached = cached
        self._memory = memory
        self._prefixes = memory.prefixes(tokens)

    def check(self, hits: int, adopted: Sequence[Sequence[int]], most: int | None = None) -> None:
        """Require the right number of hits, in blocks that hold the request's tokens.

        Hits have `most` tokens, by default all but the last one.
        """
        self._most = len(self._prefixes) - 1 if most is None else most
        longest = self._longest(content=True)
        # By its hash a draft's block may be that of another token behind it: the ids decide.
        if hits % self._layout.alignment or not longest <= hits <= self._longest(content=False):
            raise WrongAnswerError("hits", HITS[hits > longest], f"{hits}, not {longest}")
        for group, ids in enumerate(adopted):
            blocks = hits // self._layout.sizes[group]
            if len(ids) != blocks:
                raise WrongAnswerError("hit ids", BLOCKS, f"group {group}: {ids}")
            for i in range(self._layout.first_block(group, hits), blocks):
                text = self._wrong_block(group, ids[i], i)
                if text:
                    detail = f"block {ids[i]} of group {group} at index {i}"
                    raise WrongAnswerError("hit ids", text, detail)

    def _wrong_block(self, group: int, block: int, index: int) -> str:
        if self._cached.keys.get(block) != self._layout.hash_key(group, self._prefixes, index):
            return "name a block that holds other tokens"
        if not self._holds(group, block, index):
            return "name a block of a drafter behind which other tokens stood"
        return ""

    def _holds(self, group: int, block: int, index: int) -> bool:
        """True if a block with the request's hash has its keys: the last one may lack the hash."""
        size = self._layout.sizes[group]
        key = self._layout.key(group, self._prefixes, (index + 1) * size - 1)
        return not self._layout.is_volatile(group) or self._memory.at(block, size - 1) == key

    def _longest(self, *, content: bool) -> int:
        """Return the tokens of the longest cached prefix that every group accepts.

        With `content` its blocks hold the request's keys, without it they have its hashes.
        """
        if not self._layout.caching:
            return 0
        groups, step = range(len(self._layout.groups)), self._layout.alignment
        for tokens in range(self._most // step * step, 0, -step):
            if all(self._accepts(group, tokens, content) for group in groups):
                return tokens
        return 0

    def _accepts(self, group: int, tokens: int, content: bool) -> bool:
        size, dropped = self._layout.sizes[group], self._layout.drops[group]
        blocks = tokens // size
        if dropped and tokens + size > self._layout.hit_limit(len(self._prefixes), self._most):
            return False
        return all(
            any(not content or i == blocks or self._holds(group, block, i) for block in found)
            for i in range(self._layout.first_block(group, tokens), blocks + dropped)
            for found in [self._found(group, i)]
        )

    def _found(self, group: int, index: int) -> list[int]:
        """Return the cached blocks with the hash of a block of the request, if that is known."""
        end = (index + 1) * self._layout.sizes[group] + self._layout.lookahead
        if end > len(self._prefixes):
            return []
        return self._cached.having(self._layout.hash_key(group, self._prefixes, index))
