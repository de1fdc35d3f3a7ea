"""Checks of the XFormers implementation: its constants and what `forward` is given (section 8).

As in `checks`: no device tensor is read, so none of them synchronises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from .checks import check_device, check_int
from .checks_attention import (
    check_cache_dtype,
    check_floats,
    check_number,
    check_soft_cap,
    check_window,
)
from .checks_slots import overlap
from .errors import MetadataError

if TYPE_CHECKING:
    from .xformers import XFormersImpl

IMPL: Final = "XFormersAttentionImpl"


def check_impl(
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    sliding_window: int | None,
    kv_cache_dtype: str,
    logits_soft_cap: float | None,
) -> None:
    """The constants of a layer."""
    check_int(IMPL, "num_heads", num_heads, 1)
    check_int(IMPL, "num_kv_heads", num_kv_heads, 1)
    if num_heads % num_kv_heads:
        raise MetadataError(IMPL, "num_kv_heads", num_kv_heads, f"a divisor of {num_heads}")
    check_number(IMPL, "scale", scale)
    check_window(IMPL, sliding_window)
    check_cache_dtype(IMPL, kv_cache_dtype)
    check_soft_cap(IMPL, logits_soft_cap)


def check_output(
    output: torch.Tensor | None,
    output_scale: torch.Tensor | None,
    output_block_scale: torch.Tensor | None,
) -> None:
    """What `forward` requires of a profiling run too."""
    if output_scale is not None or output_block_scale is not None:
        raise NotImplementedError(f"{IMPL}.forward: fused output quantisation")
    if output is None:
        raise MetadataError(f"{IMPL}.forward", "output", "None", "a buffer to write into")
    if not isinstance(output, torch.Tensor):
        given = type(output).__name__
        raise TypeError(f"{IMPL}.forward: output is {given}, expected torch.Tensor")


def check_forward(
    impl: XFormersImpl,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    metadata: Any,
    output: torch.Tensor,
) -> None:
    """Shapes and devices of a step; what is left, the cache write and attention check."""
    operation = f"{IMPL}.forward"
    if not hasattr(metadata, "decode_metadata"):
        given = type(metadata).__name__
        expected = "XFormersAttentionMetadata"
        raise TypeError(f"{operation}: attn_metadata is {given}, expected {expected}")
    heads = (("query", query, impl.num_heads), ("key", key, impl.num_kv_heads))
    for field, tensor, count in (*heads, ("value", value, impl.num_kv_heads)):
        check_floats(operation, field, tensor, 3)
        _check_rows(operation, field, tensor, (count, impl.head_size), metadata.num_actual_tokens)
        check_device(operation, field, tensor, query.device)
        if tensor.dtype != query.dtype:
            given = f"of dtype {tensor.dtype}"
            raise MetadataError(operation, field, given, f"{query.dtype}, as query")
    _check_kv_cache(operation, kv_cache, impl, query.device)
    _check_output_like(operation, output, query, impl)
    for field, tensor in (("query", query), ("key", key), ("value", value), ("kv_cache", kv_cache)):
        if overlap(output, tensor):
            raise MetadataError(operation, "output", f"in the memory of {field}", "memory apart")
    for field in ("query_start_loc", "seq_lens", "block_table", "slot_mapping"):
        check_device(operation, field, getattr(metadata, field), query.device)


def _check_rows(
    operation: str, field: str, tensor: torch.Tensor, row: tuple[int, ...], tokens: int
) -> None:
    if tuple(tensor.shape[1:]) != row:
        expected = f"(T, {', '.join(map(str, row))})"
        raise MetadataError(operation, field, f"of shape {tuple(tensor.shape)}", expected)
    if tensor.shape[0] < tokens:
        expected = f"at least num_actual_tokens = {tokens}"
        raise MetadataError(operation, field, f"of length {tensor.shape[0]}", expected)


def _check_kv_cache(
    operation: str, kv_cache: object, impl: XFormersImpl, device: torch.device
) -> None:
    if not isinstance(kv_cache, torch.Tensor):
        given = type(kv_cache).__name__
        raise TypeError(f"{operation}: kv_cache is {given}, expected torch.Tensor")
    heads = (impl.num_kv_heads, impl.head_size)
    if kv_cache.ndim != 5 or kv_cache.shape[0] != 2 or kv_cache.shape[3:] != heads:
        expected = f"(2, num_blocks, block_size, {heads[0]}, {heads[1]})"
        raise MetadataError(operation, "kv_cache", f"of shape {tuple(kv_cache.shape)}", expected)
    check_device(operation, "kv_cache", kv_cache, device)


def _check_output_like(
    operation: str, output: torch.Tensor, query: torch.Tensor, impl: XFormersImpl
) -> None:
    row = (impl.num_heads, impl.head_size)
    flat = (output.shape[0], row[0] * row[1])
    if tuple(output.shape) != (output.shape[0], *row) and tuple(output.shape) != flat:
        expected = f"(T, {row[0]}, {row[1]}) or (T, {flat[1]})"
        raise MetadataError(operation, "output", f"of shape {tuple(output.shape)}", expected)
    if output.shape[0] != query.shape[0]:
        expected = f"length {query.shape[0]}, as query"
        raise MetadataError(operation, "output", f"of length {output.shape[0]}", expected)
    if output.ndim == 2 and not output.is_contiguous():
        raise MetadataError(operation, "output", "2-D and not contiguous", "(T, heads, head size)")
    check_device(operation, "output", output, query.device)
