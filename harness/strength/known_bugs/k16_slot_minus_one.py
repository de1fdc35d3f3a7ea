"""K16: slot -1 of a padded token indexes the cache from its end."""

from __future__ import annotations

import torch

from attnproof import reference
from attnproof.harness.strength.known_bugs.bug import Bug

BUG = Bug(
    "K16",
    "reshape_and_cache_flash",
    "vllm-project/vllm#43810",
    ("slot -1 taken for the last slot of the cache",),
    requests=1,
    tokens=1,
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
    """Writes all tokens by index; the one whose slot is -1 goes to the last slot."""
    rest = (kv_cache_dtype, k_scale, v_scale)
    reference.reshape_and_cache_flash(key, value, key_cache, value_cache, slot_mapping, *rest)
    last = key_cache.shape[0] * key_cache.shape[1] - 1
    at_the_end = torch.where(slot_mapping == -1, last, slot_mapping)
    reference.reshape_and_cache_flash(key, value, key_cache, value_cache, at_the_end, *rest)
