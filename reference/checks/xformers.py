"""Checks of the XFormers backend: constants, `build` and `forward` (SPEC.md section 8).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..interface.errors import MetadataError
from ..interface.metadata import BatchFields
from ..interface.protocols import AttentionLayer, XFormersConstants
from .attention import (
    check_cache_dtype,
    check_cache_elements,
    check_floats,
    check_live_blocks,
    check_number,
    check_query_rows,
    check_scale,
    check_slots_of_cache,
    check_soft_cap,
    check_window,
)
from .common import check_device, check_int, check_length, check_sequences, check_tensor
from .slots import overlap

BUILDER: Final = "XFormersAttentionMetadataBuilder"
BUILD: Final = f"{BUILDER}.build"
IMPL: Final = "XFormersAttentionImpl"
FORWARD: Final = f"{IMPL}.forward"
_COUNTS: Final = (
    "num_actual_tokens",
    "max_query_len",
    "max_seq_len",
    "num_decodes",
    "num_prefills",
    "num_decode_tokens",
    "num_prefill_tokens",
)


def check_impl(
    num_heads: int,
    num_kv_heads: int,
    scale: float,
    sliding_window: int | None,
    kv_cache_dtype: str,
    logits_soft_cap: float | None,
) -> None:
    """Require valid constants of a layer."""
    check_int(IMPL, "num_heads", num_heads, 1)
    check_int(IMPL, "num_kv_heads", num_kv_heads, 1)
    if num_heads % num_kv_heads:
        raise MetadataError(IMPL, "num_kv_heads", num_kv_heads, f"a divisor of {num_heads}")
    check_number(IMPL, "scale", scale)
    check_window(IMPL, sliding_window)
    check_cache_dtype(IMPL, kv_cache_dtype)
    check_soft_cap(IMPL, logits_soft_cap)


def check_build(metadata: BatchFields, block_size: int) -> None:
    """Require consistent lengths and a block table wide enough for the longest sequence."""
    check_sequences(BUILD, metadata)
    longest = max(metadata.seq_lens_cpu.tolist(), default=0)
    columns = metadata.block_table_tensor.shape[1]
    if longest > columns * block_size:
        expected = f"at least {-(-longest // block_size)} for {longest} tokens"
        raise MetadataError(BUILD, "block_table_tensor", f"{columns} columns", expected)


def check_output(
    output: torch.Tensor | None,
    output_scale: torch.Tensor | None,
    output_block_scale: torch.Tensor | None,
) -> None:
    """Require an output buffer and no output scales, in a profile run too."""
    if output_scale is not None or output_block_scale is not None:
        raise NotImplementedError(f"{FORWARD}: fused output quantisation is not supported")
    if output is None:
        raise MetadataError(FORWARD, "output", "None", "a buffer to write into")
    if not isinstance(output, torch.Tensor):
        got = type(output).__name__
        raise TypeError(f"{FORWARD}: output is {got}, expected torch.Tensor")


def check_forward(
    impl: XFormersConstants,
    layer: AttentionLayer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: torch.Tensor,
    metadata: Any,
    output: torch.Tensor,
) -> None:
    """Require valid arguments of `forward`, all of them before the cache is written."""
    _check_metadata(metadata)
    heads = (("query", query, impl.num_heads), ("key", key, impl.num_kv_heads))
    for field, tensor, count in (*heads, ("value", value, impl.num_kv_heads)):
        check_floats(FORWARD, field, tensor, 3)
        _check_rows(field, tensor, (count, impl.head_size), metadata.num_actual_tokens)
        check_device(FORWARD, field, tensor, query.device)
        if tensor.dtype != query.dtype:
            got = f"of dtype {tensor.dtype}"
            raise MetadataError(FORWARD, field, got, f"{query.dtype}, as query")
    _check_kv_cache(kv_cache, impl, query)
    if impl.kv_cache_dtype != "auto":
        for field in ("_k_scale", "_v_scale"):
            check_scale(FORWARD, field, getattr(layer, field), query.device)
    _check_output_like(output, query, impl)
    for field, tensor in (("query", query), ("key", key), ("value", value), ("kv_cache", kv_cache)):
        if overlap(output, tensor):
            raise MetadataError(FORWARD, "output", f"in the memory of {field}", "memory apart")
    for field in ("query_start_loc", "seq_lens", "block_table", "slot_mapping"):
        check_device(FORWARD, field, getattr(metadata, field), query.device)
    if query.is_cpu:
        _check_values(metadata, query, kv_cache[0])


def _check_metadata(md: Any) -> None:
    """Require valid types, shapes and counts of `XFormersAttentionMetadata`; no tensor is read."""
    if not hasattr(type(md), "decode_metadata"):
        got = type(md).__name__
        raise TypeError(f"{FORWARD}: attn_metadata is {got}, expected XFormersAttentionMetadata")
    for field in _COUNTS:
        check_int(FORWARD, field, getattr(md, field), 0)
    rows = md.num_decodes + md.num_prefills
    for field, ndim, length in (
        ("query_start_loc", 1, rows + 1),
        ("seq_lens", 1, rows),
        ("block_table", 2, rows),
    ):
        check_length(FORWARD, field, check_tensor(FORWARD, field, getattr(md, field), ndim), length)
    slots = check_tensor(FORWARD, "slot_mapping", md.slot_mapping, 1)
    if slots.dtype is not torch.int64:
        raise MetadataError(FORWARD, "slot_mapping", f"of dtype {slots.dtype}", "int64")
    if slots.shape[0] < md.num_actual_tokens:
        expected = f"at least num_actual_tokens = {md.num_actual_tokens}"
        raise MetadataError(FORWARD, "slot_mapping", f"of length {slots.shape[0]}", expected)
    tokens = md.num_decode_tokens + md.num_prefill_tokens
    if tokens > md.num_actual_tokens:
        expected = f"at least {tokens}, decode and prefill tokens"
        raise MetadataError(FORWARD, "num_actual_tokens", md.num_actual_tokens, expected)


def _check_values(md: Any, query: torch.Tensor, key_cache: torch.Tensor) -> None:
    """Require consistent offsets, lengths, blocks and slots; all tensors are on the CPU."""
    rows = md.num_decodes + md.num_prefills
    check_query_rows(FORWARD, query, md.query_start_loc, md.max_query_len, rows)
    split, end = (int(md.query_start_loc[row]) for row in (md.num_decodes, rows))
    decode_tokens, tokens = md.num_decode_tokens, md.num_decode_tokens + md.num_prefill_tokens
    if split > decode_tokens or (md.num_prefills and split < decode_tokens):
        expected = f"{split}, the tokens of the rows before the split"
        raise MetadataError(FORWARD, "num_decode_tokens", decode_tokens, expected)
    if end > tokens:
        expected = f"at least {end - decode_tokens}, the tokens of the rows after the split"
        raise MetadataError(FORWARD, "num_prefill_tokens", md.num_prefill_tokens, expected)
    check_live_blocks(FORWARD, key_cache, md.seq_lens, md.block_table, md.max_seq_len)
    check_slots_of_cache(FORWARD, md.slot_mapping[: md.num_actual_tokens], key_cache)


def _check_rows(field: str, tensor: torch.Tensor, row: tuple[int, ...], tokens: int) -> None:
    if tuple(tensor.shape[1:]) != row:
        expected = f"(T, {', '.join(map(str, row))})"
        raise MetadataError(FORWARD, field, f"of shape {tuple(tensor.shape)}", expected)
    if tensor.shape[0] < tokens:
        expected = f"at least num_actual_tokens = {tokens}"
        raise MetadataError(FORWARD, field, f"of length {tensor.shape[0]}", expected)


def _check_kv_cache(kv_cache: object, impl: XFormersConstants, query: torch.Tensor) -> None:
    if not isinstance(kv_cache, torch.Tensor):
        got = type(kv_cache).__name__
        raise TypeError(f"{FORWARD}: kv_cache is {got}, expected torch.Tensor")
    shape, heads = kv_cache.shape, (impl.num_kv_heads, impl.head_size)
    if kv_cache.ndim != 5 or shape[0] != 2 or not shape[2] or shape[3:] != heads:
        expected = f"(2, num_blocks, block_size, {heads[0]}, {heads[1]})"
        raise MetadataError(FORWARD, "kv_cache", f"of shape {tuple(shape)}", expected)
    if kv_cache.stride(4) != 1:
        raise MetadataError(FORWARD, "kv_cache", "strided in its last dimension", "dense heads")
    check_cache_elements(FORWARD, kv_cache, query.dtype, impl.kv_cache_dtype, "kv_cache")
    check_device(FORWARD, "kv_cache", kv_cache, query.device)


def _check_output_like(output: torch.Tensor, query: torch.Tensor, impl: XFormersConstants) -> None:
    row = (impl.num_heads, impl.head_size)
    flat = (output.shape[0], row[0] * row[1])
    if tuple(output.shape) != (output.shape[0], *row) and tuple(output.shape) != flat:
        expected = f"(T, {row[0]}, {row[1]}) or (T, {flat[1]})"
        raise MetadataError(FORWARD, "output", f"of shape {tuple(output.shape)}", expected)
    if output.shape[0] != query.shape[0]:
        expected = f"length {query.shape[0]}, as query"
        raise MetadataError(FORWARD, "output", f"of length {output.shape[0]}", expected)
    if output.dtype not in (query.dtype, torch.float32, torch.float64):
        expected = f"{query.dtype}, float32 or float64"
        raise MetadataError(FORWARD, "output", f"of dtype {output.dtype}", expected)
    if output.ndim == 2 and output.stride(1) != 1:
        raise MetadataError(FORWARD, "output", "strided in its last dimension", "dense rows")
    check_device(FORWARD, "output", output, query.device)
