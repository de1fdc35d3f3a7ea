"""Write the keys and values of new tokens to the paged cache (SPEC.md section 8)."""

from __future__ import annotations

import torch

from attnproof.reference.checks.attention import check_cache_write

__all__ = [
    "reshape_and_cache_flash",
]

_FP8_MAX = 448.0
"""Largest finite value of float8_e4m3fn."""


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
    """Write the keys and values of new tokens to their slots of the cache.

    `key`, `value` (T', Hkv, D) float16 or bfloat16; `key_cache`, `value_cache`
    (num_blocks, B, Hkv, D) of the same dtype ("auto"), or float8_e4m3fn or uint8
    ("fp8", "fp8_e4m3"), which hold `x / scale` saturated at 448; `slot_mapping` (T,)
    int64 with T <= T', -1 for a token that is not written; `k_scale`, `v_scale` float32
    of one element, not read with "auto". Raise MetadataError for mismatched shapes,
    dtypes, devices and for slots outside the cache. SPEC.md section 8.
    """
    check_cache_write(
        key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
    )
    block_size = key_cache.shape[1]
    for new_rows, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        for token, slot in enumerate(slot_mapping.tolist()):
            if slot < 0:
                continue
            block, offset = divmod(slot, block_size)
            if kv_cache_dtype == "auto":
                cache[block, offset] = new_rows[token]
            else:
                cache.view(torch.uint8)[block, offset] = _quantized(new_rows[token], scale)


def _quantized(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the bits of `x / scale` in float8_e4m3fn, rounded to nearest and saturated."""
    scaled = (x.float() / scale.float()).clamp(-_FP8_MAX, _FP8_MAX)  # clamp keeps NaN
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)
