"""Checks of the cache write and of attention over pages (SPEC.md section 8).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

import math
from typing import Final

import torch

from ..interface.errors import MetadataError
from .common import check_device, check_int, check_length, check_offsets, check_tensor
from .slots import overlap

CACHE_WRITE: Final = "reshape_and_cache_flash"
CACHE_DTYPES: Final = ("auto", "fp8", "fp8_e4m3")
"""Accepted values of `kv_cache_dtype`."""
_FLOATS: Final = (torch.float16, torch.bfloat16)
_FP8: Final = (torch.float8_e4m3fn, torch.uint8)


def check_cache_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Require valid arguments of `reshape_and_cache_flash`; slots are read on the CPU only."""
    operation = CACHE_WRITE
    check_floats(operation, "key", key, 3)
    _check_like(operation, "value", value, "key", key)
    check_cache_dtype(operation, kv_cache_dtype)
    check_caches(operation, key_cache, value_cache, key.shape[1:], key.device)
    check_cache_elements(operation, key_cache, key.dtype, kv_cache_dtype)
    check_tensor(operation, "slot_mapping", slot_mapping, 1)
    check_device(operation, "slot_mapping", slot_mapping, key.device)
    for field, tensor in (("key", key), ("value", value)):
        if tensor.shape[0] < slot_mapping.shape[0]:
            expected = f"at least {slot_mapping.shape[0]}, as many as slots"
            raise MetadataError(operation, field, f"of length {tensor.shape[0]}", expected)
    if kv_cache_dtype != "auto":
        for field, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            check_scale(operation, field, scale, key.device)
    if slot_mapping.is_cpu:
        check_slots_of_cache(operation, slot_mapping, key_cache)


def check_attention(
    operation: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    max_seq_len: int,
    sliding_window: int | None,
    logits_soft_cap: float | None,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """Require valid values of the arguments that both attention functions take."""
    check_floats(operation, "query", query, 3)
    _check_caches_of_queries(operation, query, key_cache, value_cache, k_scale, v_scale)
    rows = check_tensor(operation, "seq_lens", seq_lens, 1).shape[0]
    check_tensor(operation, "block_table", block_table, 2)
    check_length(operation, "block_table", block_table, rows)
    for field, tensor in (("seq_lens", seq_lens), ("block_table", block_table)):
        check_device(operation, field, tensor, query.device)
    check_number(operation, "scale", scale)
    check_int(operation, "max_seq_len", max_seq_len, 0)
    check_window(operation, sliding_window)
    check_soft_cap(operation, logits_soft_cap)
    _check_out(operation, out, query)
    for field, tensor in (("query", query), ("key_cache", key_cache), ("value_cache", value_cache)):
        if overlap(out, tensor):
            raise MetadataError(operation, "out", f"in the memory of {field}", "memory apart")
    if seq_lens.is_cpu:
        check_live_blocks(operation, key_cache, seq_lens, block_table, max_seq_len)


def check_query_rows(
    operation: str,
    query: torch.Tensor,
    query_start_loc: torch.Tensor,
    max_query_len: int,
    rows: int,
) -> None:
    """Require offsets of `rows` requests within the query's tokens, and a `max_query_len` bound."""
    check_tensor(operation, "query_start_loc", query_start_loc, 1)
    check_length(operation, "query_start_loc", query_start_loc, rows + 1)
    check_device(operation, "query_start_loc", query_start_loc, query.device)
    check_int(operation, "max_query_len", max_query_len, 0)
    if not query_start_loc.is_cpu:
        return
    check_offsets(operation, "query_start_loc", query_start_loc)
    if int(query_start_loc[-1]) > query.shape[0]:
        expected = f"at least {int(query_start_loc[-1])}, query_start_loc's end"
        raise MetadataError(operation, "query", f"of length {query.shape[0]}", expected)
    longest = int(query_start_loc.diff().max()) if rows else 0
    if max_query_len < longest:
        raise MetadataError(operation, "max_query_len", max_query_len, f"at least {longest}")


def check_one_query_each(query: torch.Tensor, rows: int) -> None:
    """Require one query for each of the `rows` requests of `decode_attention`."""
    if query.shape[0] != rows:
        expected = f"length {rows}, one query for each request"
        raise MetadataError("decode_attention", "query", f"of length {query.shape[0]}", expected)


def check_slots_of_cache(
    operation: str, slot_mapping: torch.Tensor, key_cache: torch.Tensor
) -> None:
    """Require each slot to be -1 or within the cache; both are CPU tensors."""
    if not slot_mapping.numel():
        return
    last = key_cache.shape[0] * key_cache.shape[1] - 1
    for slot in (int(slot_mapping.min()), int(slot_mapping.max())):
        if not -1 <= slot <= last:
            raise MetadataError(operation, "slot_mapping", slot, f"-1 or a slot up to {last}")


def check_floats(operation: str, field: str, value: object, ndim: int) -> torch.Tensor:
    """Require a float16 or bfloat16 tensor of `ndim` dimensions."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected torch.Tensor")
    if value.ndim != ndim:
        raise MetadataError(operation, field, f"of shape {tuple(value.shape)}", f"{ndim}-D")
    if value.dtype not in _FLOATS:
        raise MetadataError(operation, field, f"of dtype {value.dtype}", "float16 or bfloat16")
    return value


def check_cache_dtype(operation: str, kv_cache_dtype: object) -> None:
    """Require one of `CACHE_DTYPES` (TypeError, MetadataError)."""
    if not isinstance(kv_cache_dtype, str):
        got = type(kv_cache_dtype).__name__
        raise TypeError(f"{operation}: kv_cache_dtype is {got}, expected str")
    if kv_cache_dtype not in CACHE_DTYPES:
        expected = " or ".join(map(repr, CACHE_DTYPES))
        raise MetadataError(operation, "kv_cache_dtype", repr(kv_cache_dtype), expected)


def check_caches(
    operation: str,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    heads: torch.Size,
    device: torch.device,
) -> None:
    """Require (num_blocks, B, *heads) of one dtype on `device`, dense in the last dimension."""
    for field, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if not isinstance(cache, torch.Tensor):
            got = type(cache).__name__
            raise TypeError(f"{operation}: {field} is {got}, expected torch.Tensor")
        if cache.ndim != 4 or cache.shape[2:] != heads or not cache.shape[1]:
            expected = f"(num_blocks, block_size, {', '.join(map(str, heads))})"
            raise MetadataError(operation, field, f"of shape {tuple(cache.shape)}", expected)
        if cache.shape[3] > 1 and cache.stride(3) != 1:
            raise MetadataError(operation, field, "strided in its last dimension", "dense heads")
        check_device(operation, field, cache, device)
    if value_cache.shape != key_cache.shape or value_cache.dtype != key_cache.dtype:
        got = f"{value_cache.dtype} of shape {tuple(value_cache.shape)}"
        expected = f"{key_cache.dtype} of shape {tuple(key_cache.shape)}, as key_cache"
        raise MetadataError(operation, "value_cache", got, expected)


def check_scale(operation: str, field: str, scale: object, device: torch.device) -> None:
    """Require a float32 tensor of one element on `device`."""
    if not isinstance(scale, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(scale).__name__}, expected torch.Tensor")
    if scale.dtype != torch.float32 or scale.numel() != 1:
        got = f"{scale.dtype} of shape {tuple(scale.shape)}"
        raise MetadataError(operation, field, got, "one element of float32")
    check_device(operation, field, scale, device)


def check_number(operation: str, field: str, value: object) -> None:
    """Require a finite Python number (TypeError, MetadataError)."""
    if type(value) not in (int, float):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected float")
    if not math.isfinite(value):  # type: ignore[arg-type]  # int or float by now
        raise MetadataError(operation, field, value, "a finite number")


def check_window(operation: str, sliding_window: int | None) -> None:
    """Require a window of at least 1 key, or None."""
    if sliding_window is not None:
        check_int(operation, "sliding_window", sliding_window, 1)


def check_soft_cap(operation: str, logits_soft_cap: float | None) -> None:
    """Require a number that is not negative, or None."""
    if logits_soft_cap is None:
        return
    check_number(operation, "logits_soft_cap", logits_soft_cap)
    if logits_soft_cap < 0:
        raise MetadataError(operation, "logits_soft_cap", logits_soft_cap, "at least 0")


def _check_like(operation: str, field: str, tensor: object, model: str, like: torch.Tensor) -> None:
    checked = check_floats(operation, field, tensor, like.ndim)
    if checked.shape[1:] != like.shape[1:] or checked.dtype != like.dtype:
        got = f"{checked.dtype} of shape {tuple(checked.shape)}"
        expected = f"{like.dtype} with rows of {tuple(like.shape[1:])}, as {model}"
        raise MetadataError(operation, field, got, expected)
    check_device(operation, field, checked, like.device)


def check_cache_elements(
    operation: str,
    cache: torch.Tensor,
    dtype: torch.dtype,
    kv_cache_dtype: str,
    field: str = "key_cache",
) -> None:
    """Require the dtype of the queries for an "auto" cache, float8 or uint8 for a quantised one."""
    expected = (dtype,) if kv_cache_dtype == "auto" else _FP8
    if cache.dtype not in expected:
        names = " or ".join(str(name).removeprefix("torch.") for name in expected)
        raise MetadataError(operation, field, f"of dtype {cache.dtype}", names)


def _check_caches_of_queries(
    operation: str,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
) -> None:
    """Require caches whose heads divide the query's, and scales if they are quantised."""
    if not isinstance(key_cache, torch.Tensor) or key_cache.ndim != 4:
        check_caches(operation, key_cache, value_cache, query.shape[1:], query.device)
    kv_heads = key_cache.shape[2]
    if not kv_heads or query.shape[1] % kv_heads:
        expected = f"a multiple of the cache's {kv_heads}"
        raise MetadataError(operation, "query", f"of {query.shape[1]} heads", expected)
    heads = torch.Size((kv_heads, query.shape[2]))
    check_caches(operation, key_cache, value_cache, heads, query.device)
    quantised = key_cache.dtype in _FP8
    check_cache_elements(operation, key_cache, query.dtype, "fp8" if quantised else "auto")
    if quantised:
        for field, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            if scale is None:
                raise MetadataError(operation, field, "None", "the scale of an fp8 cache")
            check_scale(operation, field, scale, query.device)


def _check_out(operation: str, out: object, query: torch.Tensor) -> None:
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"{operation}: out is {type(out).__name__}, expected torch.Tensor")
    if out.shape != query.shape:
        expected = f"{tuple(query.shape)}, as query"
        raise MetadataError(operation, "out", f"of shape {tuple(out.shape)}", expected)
    if out.dtype not in (query.dtype, torch.float32, torch.float64):
        expected = f"{query.dtype}, float32 or float64"
        raise MetadataError(operation, "out", f"of dtype {out.dtype}", expected)
    check_device(operation, "out", out, query.device)


def check_live_blocks(
    operation: str,
    key_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_seq_len: int,
) -> None:
    """Require lengths within bounds and a block of the cache for each position (CPU tensors)."""
    if not seq_lens.numel():
        return
    least, longest = int(seq_lens.min()), int(seq_lens.max())
    if least < 0:
        raise MetadataError(operation, "seq_lens", f"{least} at its least", "no negative length")
    if max_seq_len < longest:
        raise MetadataError(operation, "max_seq_len", max_seq_len, f"at least {longest}")
    num_blocks, block_size = key_cache.shape[:2]
    counts = -(-seq_lens // block_size)
    if int(counts.max()) > block_table.shape[1]:
        expected = f"at least {int(counts.max())} for {longest} tokens"
        raise MetadataError(operation, "block_table", f"{block_table.shape[1]} columns", expected)
    live = block_table[torch.arange(block_table.shape[1]) < counts[:, None]]
    for block in (live.min(), live.max()) if live.numel() else ():
        if not 0 <= int(block) < num_blocks:
            expected = f"a block of the cache's {num_blocks}"
            raise MetadataError(operation, "block_table", f"block {int(block)}", expected)
