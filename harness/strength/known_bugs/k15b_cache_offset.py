"""K15: the offset of a slot's elements in the cache is computed in 32 bits and wraps."""

from __future__ import annotations

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug
from attnproof.reference.checks.attention import check_cache_write

BUG = Bug(
    "K15b",
    "reshape_and_cache_flash",
    "vllm-project/vllm#1486, vllm-project/vllm#50427",
    ("32-bit overflow",),
)


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Writes each token through a view of its slot, at an offset that passes through int32."""
    rest = (kv_cache_dtype, k_scale, v_scale)
    check_cache_write(key, value, key_cache, value_cache, slot_mapping, *rest)
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            reference.reshape_and_cache_flash(
                key[token : token + 1],
                value[token : token + 1],
                _slot(key_cache, slot),
                _slot(value_cache, slot),
                slot_mapping.new_zeros(1),
                *rest,
            )


def _slot(cache: torch.Tensor, slot: int) -> torch.Tensor:
    """One slot as a cache of its own, where its wrapped offset says that it is."""
    block, inside = divmod(slot, cache.shape[1])
    exact = block * cache.stride(0) + inside * cache.stride(1)
    wrapped = (exact + 2**31) % 2**32 - 2**31
    place = cache.storage_offset() + wrapped
    return cache.as_strided((1, 1, *cache.shape[2:]), cache.stride(), place)
