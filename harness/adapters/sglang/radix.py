"""`RadixCache` of SGLang, which locks nodes, and frees evicted slots in its allocator."""

from __future__ import annotations

from array import array
from typing import Any

import torch

from attnproof.harness.adapters.single_engines import UnfitError, home_of, module_of

_CACHE = "sglang.srt.mem_cache"
_NEEDED = ("base_prefix_cache", "cache_init_params", "events", "utils", "evict_policy")


def radix_cache() -> type[Any]:
    """Return a class with our methods that calls SGLang's RadixCache (UnfitError)."""
    home = home_of("SGLang", (f"{_CACHE}.radix_cache",), "RadixCache")
    module = module_of("SGLang", home, *(f"{_CACHE}.{name}" for name in _NEEDED))
    if not hasattr(module.RadixCache, "path_device_indices"):
        raise UnfitError("this release's RadixCache takes other arguments")

    class RadixCache:
        """SGLang's tree; an inserted token gets the next slot."""

        def __init__(self, page_size: int = 1) -> None:
            self._allocator = _Allocator()
            create = module.RadixCache.create_simulated
            self._tree = create(mock_allocator=self._allocator, page_size=page_size)
            self._tree.update_eviction_metrics = lambda *_: None
            self._locked: list[Any] = []
            self._next_slot = 0

        evictable_size = property(lambda self: self._tree.evictable_size())
        protected_size = property(lambda self: self._tree.protected_size())

        def match_prefix(self, token_ids: torch.Tensor) -> torch.Tensor:
            slots: torch.Tensor = self._tree.path_device_indices(self._match(token_ids))
            return slots

        def insert(self, token_ids: torch.Tensor) -> int:
            slots = torch.arange(self._next_slot, self._next_slot + len(token_ids))
            self._next_slot += len(token_ids)
            params = module.InsertParams(key=_key(token_ids), value=slots)
            cached: int = self._tree.insert(params).prefix_len
            return cached

        def lock(self, token_ids: torch.Tensor) -> int:
            self._locked.append(self._match(token_ids))
            self._tree.inc_lock_ref(self._locked[-1])
            return len(self._tree.path_device_indices(self._locked[-1]))

        def unlock(self, number: int) -> None:
            self._tree.dec_lock_ref(self._locked.pop(number))

        def evict(self, num_tokens: int) -> torch.Tensor:
            self._allocator.slots = []
            self._tree.evict(module.EvictParams(num_tokens=num_tokens))
            return torch.tensor(sorted(self._allocator.slots), dtype=torch.int64)

        def _match(self, token_ids: torch.Tensor) -> Any:
            params = module.MatchPrefixParams(key=_key(token_ids))
            return self._tree.match_prefix(params).last_device_node

    def _key(token_ids: torch.Tensor) -> Any:
        return module.RadixKey(array("q", token_ids.tolist()))

    return RadixCache


class _Allocator:
    """The part of SGLang's allocator that an eviction uses."""

    device = "cpu"

    def __init__(self) -> None:
        self.slots: list[int] = []

    def free_segment(self, slots: torch.Tensor, start_pos: int) -> None:  # noqa: ARG002
        """Take slots back."""
        self.slots += slots.tolist()
