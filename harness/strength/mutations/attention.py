"""Mistakes in cache writes and attention over pages (SPEC.md section 8)."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation
from attnproof.reference.checks.attention import check_cache_write


@mutation(
    "reshape_and_cache_flash",
    "K15b",
    source="vllm-project/vllm#1486, vllm-project/vllm#50427",
    diagnoses=("32-bit overflow",),
    both=("consumer", "invariants"),
)
def cache_offset(
    write: Any,
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    slot_mapping: Any,
    *rest: Any,
) -> None:
    """The offset of a slot's elements in the cache is computed in 32 bits and wraps."""
    check_cache_write(key, value, key_cache, value_cache, slot_mapping, *rest)
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            rows = (key[token : token + 1], value[token : token + 1])
            caches = (_one_slot(key_cache, slot), _one_slot(value_cache, slot))
            write(*rows, *caches, slot_mapping.new_zeros(1), *rest)


def _one_slot(cache: torch.Tensor, slot: int) -> torch.Tensor:
    """Return a view of one slot as a cache, at the slot's wrapped offset."""
    block, inside = divmod(slot, cache.shape[1])
    exact = block * cache.stride(0) + inside * cache.stride(1)
    wrapped = (exact + 2**31) % 2**32 - 2**31
    place = cache.storage_offset() + wrapped
    return cache.as_strided((1, 1, *cache.shape[2:]), cache.stride(), place)
