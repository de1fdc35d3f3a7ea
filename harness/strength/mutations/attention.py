"""Mistakes in cache writes and attention over pages (SPEC.md section 8)."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation
from attnproof.reference.checks.attention import check_cache_write

_WRITE = "reshape_and_cache_flash"


@mutation(
    _WRITE,
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


@mutation(
    _WRITE,
    "K16",
    source="vllm-project/vllm#43810",
    diagnoses=("slot -1 taken for the last slot of the cache",),
    requests=1,
    tokens=1,
    both=("invariants",),
)
def slot_minus_one(
    write: Any,
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    slot_mapping: Any,
    *rest: Any,
) -> None:
    """Slot -1 of a padded token indexes the cache from its end."""
    write(key, value, key_cache, value_cache, slot_mapping, *rest)
    last = key_cache.shape[0] * key_cache.shape[1] - 1
    at_the_end = torch.where(slot_mapping == -1, last, slot_mapping)
    write(key, value, key_cache, value_cache, at_the_end, *rest)


@mutation(
    "decode_attention",
    "K24",
    source="erratum E14",
    diagnoses=("sliding window ignored", "soft cap ignored", "sliding window and soft cap ignored"),
    both=("consumer", "invariants"),
    boundary="window of 1 without a mask (K24)",
)
def decodes_only(
    attend: Any,
    *tensors: Any,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    **rest: Any,
) -> None:
    """Attention of decodes ignores sliding window and soft cap."""
    bounds = {"sliding_window": sliding_window, "logits_soft_cap": logits_soft_cap}
    attend(*tensors, **bounds, **rest)  # for its errors
    attend(*tensors, **rest)


@mutation(
    "paged_attention",
    diagnoses=("is not attention over the batch",),
    both=("consumer",),
    examined=None,
    boundary="NHD",
)
def query_heads_of_the_next_group(
    attend: Any, query: torch.Tensor, *args: Any, out: torch.Tensor, **kwargs: Any
) -> None:
    """Groups of query heads start one head late."""
    attend(query.roll(1, 1), *args, out=out, **kwargs)
    out.copy_(out.roll(-1, 1))
