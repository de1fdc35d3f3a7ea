"""Write the keys and values of new tokens to the paged cache (SPEC.md section 8)."""

from __future__ import annotations

from typing import Final

import torch

from attnproof.reference.checks.attention import check_cache_write

from .checking import checks
from .dispatch import on_device
from .host.cache_rows import cache_rows
from .host.cache_write import slots_fit, write_rows

__all__ = [
    "reshape_and_cache_flash",
]

_checked = checks.follow(globals())
_TENSOR, _INT64, _FLOAT32 = torch.Tensor, torch.int64, torch.float32
_FLOATS: Final = (torch.float16, torch.bfloat16)
_FP8: Final = (torch.float8_e4m3fn, torch.uint8)


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
    (num_blocks, B, Hkv, D) in the same dtype ("auto") or fp8 ("fp8", "fp8_e4m3":
    float8_e4m3fn or uint8); `slot_mapping` (T,) with T <= T'; scales of one element.
    Result and errors as in `reference`. On a device: one kernel for keys and values, no
    sync, and a slot outside the cache writes nothing. SPEC.md section 8.
    """
    write = key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale
    by_kernel = isinstance(key, _TENSOR) and on_device(key)
    trusted = by_kernel and not _checked  # the loops on the host always look
    if not trusted and (not _fits(*write) or (by_kernel and slot_mapping.is_cpu)):
        check_cache_write(*write)
    if not slot_mapping.numel():
        return
    if not (key.numel() and key_cache.numel()):  # nothing to write, or no slot
        check_cache_write(*write)
        return
    scales = None if kv_cache_dtype == "auto" else (k_scale, v_scale)
    rows = cache_rows(key, value, key_cache, value_cache, flat=not by_kernel)
    if by_kernel:
        from .kernels.cache_write import write_rows_on_device

        write_rows_on_device(rows, slot_mapping, scales)
        return
    slots = slot_mapping.contiguous().numpy()
    if not slots_fit(slots, rows.num_slots):
        check_cache_write(*write)
    write_rows(rows, slots, scales)


def _fits(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slots: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> bool:
    """True if types, shapes, dtypes and devices are certainly valid.

    If False, call the slower shared check: it accepts the arguments or reports the field.
    """
    if not type(key) is type(value) is type(key_cache) is type(value_cache) is _TENSOR:
        return False
    if type(slots) is not _TENSOR or key.ndim != 3 or key_cache.ndim != 4 or slots.ndim != 1:
        return False
    tokens, shape, block_shape = slots.shape[0], key.shape, key_cache.shape
    return (
        slots.dtype is _INT64
        and key.dtype in _FLOATS
        and value.dtype is key.dtype
        and value.shape == shape
        and shape[0] >= tokens
        and block_shape[2:] == shape[1:]
        and block_shape[1] > 0
        and value_cache.shape == block_shape
        and value_cache.dtype is key_cache.dtype
        and key_cache.stride(3) == value_cache.stride(3) == 1
        and _on_one_device(key, value, key_cache, value_cache, slots)
        and _elements_fit(key, key_cache, kv_cache_dtype, k_scale, v_scale)
    )


def _on_one_device(key: torch.Tensor, *others: torch.Tensor) -> bool:
    device = None if key.is_cpu else key.device
    for other in others:  # noqa: SIM110 - a generator costs as much as the comparisons
        if other.device != device if device else not other.is_cpu:
            return False
    return True


def _elements_fit(
    key: torch.Tensor,
    cache: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> bool:
    """True if the dtype of the cache matches `kv_cache_dtype` and fp8 has its scales."""
    if kv_cache_dtype == "auto":
        return cache.dtype is key.dtype
    return (
        kv_cache_dtype in ("fp8", "fp8_e4m3")
        and cache.dtype in _FP8
        and type(k_scale) is type(v_scale) is _TENSOR
        and k_scale.dtype is v_scale.dtype is _FLOAT32
        and k_scale.numel() == v_scale.numel() == 1
        and _on_one_device(key, k_scale, v_scale)
    )
