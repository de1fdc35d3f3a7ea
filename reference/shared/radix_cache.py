"""Cached prefixes in a radix tree (SPEC.md section 15). Both packages share it: it walks dicts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int
from ..interface import MetadataError

_Tokens = Annotated[torch.Tensor, Array(shape=("N",), least=0)]
_Slots = Annotated[torch.Tensor, Array(shape=("?",))]
_Prefix = tuple[int, ...]


@dataclass
class _Node:
    """Pages of a node of the tree, behind those of its parent."""

    first: int
    """Tokens before it."""
    slots: list[int]
    time: int
    """Time at which a call went through it last."""
    locks: int = 0


@operation(state=("evictable_size", "protected_size"))
class RadixCache:
    """Tree of cached prefixes and their slots, whose leaf used longest ago is evicted first.

    Prefixes are whole pages of `page_size` tokens. SPEC.md section 15.
    """

    def __init__(self, page_size: Annotated[int, Int(least=1)] = 1) -> None:
        self._page_size = page_size
        self._nodes: dict[_Prefix, _Node] = {}  # by the prefix that each ends
        self._locked: list[_Prefix] = []
        self._time = self._next_slot = 0
        self.evictable_size = self.protected_size = 0

    def match_prefix(self, token_ids: _Tokens) -> _Slots:
        """Return the slots of the longest cached prefix."""
        path = self._path(self._walk(self._pages(token_ids)))
        return torch.tensor([slot for node in path for slot in node.slots], dtype=torch.int64)

    def insert(self, token_ids: _Tokens) -> int:
        """Cache tokens in the next slots; return how many of them were cached already."""
        tokens = self._pages(token_ids)
        cached = len(self._walk(tokens))
        if cached < len(tokens):
            slots = range(self._next_slot + cached, self._next_slot + len(tokens))
            self._time += 1
            self._nodes[tokens] = _Node(cached, list(slots), self._time)
        self._next_slot += len(token_ids)
        self._count()
        return cached

    def lock(self, token_ids: _Tokens) -> int:
        """Protect the longest cached prefix; return its tokens."""
        prefix = self._walk(self._pages(token_ids))
        self._locked.append(prefix)
        self._add_locks(prefix, 1)
        return len(prefix)

    def unlock(self, number: Annotated[int, Int()]) -> None:
        """Release the lock of this number, the oldest one being 0."""
        if number >= len(self._locked):
            expected = f"below {len(self._locked)}"
            raise MetadataError("RadixCache.unlock", "number", str(number), expected)
        self._add_locks(self._locked.pop(number), -1)

    def evict(self, num_tokens: Annotated[int, Int(least=1)]) -> _Slots:
        """Evict unlocked leaves until so many slots are free; return these in ascending order."""
        evicted: list[int] = []
        while len(evicted) < num_tokens:
            parents = {prefix[: node.first] for prefix, node in self._nodes.items()}
            times = {
                prefix: node.time
                for prefix, node in self._nodes.items()
                if prefix not in parents and not node.locks
            }
            if not times:
                break
            evicted += self._nodes.pop(min(times, key=times.__getitem__)).slots
        self._count()
        return torch.tensor(sorted(evicted), dtype=torch.int64)

    def _pages(self, token_ids: torch.Tensor) -> _Prefix:
        return tuple(token_ids.tolist()[: len(token_ids) // self._page_size * self._page_size])

    def _walk(self, tokens: _Prefix) -> _Prefix:
        """Go to the end of the longest cached prefix, which ends a node from then on."""
        self._time += 1
        end, size = 0, self._page_size
        while end < len(tokens):
            page = tokens[: end + size]
            children = [
                p for p, n in self._nodes.items() if n.first == end and p[: end + size] == page
            ]
            if not children:
                break
            [prefix] = children
            self._nodes[prefix].time = self._time
            while end < len(prefix) and prefix[: end + size] == tokens[: end + size]:
                end += size
            if end < len(prefix):
                self._split(prefix, end)
                break
        return tokens[:end]

    def _split(self, prefix: _Prefix, end: int) -> None:
        """Let a node begin at `end`, and another one end there."""
        node = self._nodes[prefix]
        count = end - node.first
        self._time += 1
        self._nodes[prefix[:end]] = _Node(node.first, node.slots[:count], self._time, node.locks)
        node.first, node.slots = end, node.slots[count:]

    def _path(self, prefix: _Prefix) -> list[_Node]:
        """Return the nodes of a prefix that ends one, the first one first."""
        nodes: list[_Node] = []
        while prefix:
            nodes.insert(0, self._nodes[prefix])
            prefix = prefix[: nodes[0].first]
        return nodes

    def _add_locks(self, prefix: _Prefix, count: int) -> None:
        for node in self._path(prefix):
            node.locks += count
        self._count()

    def _count(self) -> None:
        sizes = [(len(node.slots), node.locks > 0) for node in self._nodes.values()]
        self.protected_size = sum(size for size, is_locked in sizes if is_locked)
        self.evictable_size = sum(size for size, is_locked in sizes if not is_locked)
