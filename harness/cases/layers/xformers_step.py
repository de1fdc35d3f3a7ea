"""Arguments of one engine step through one layer of the XFormers backend."""

from __future__ import annotations

import logging
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.layers.attention import Shape
from attnproof.harness.model.case import Batch
from attnproof.reference.shared import CommonAttentionMetadata

# At each import xformers warns that its CUDA extensions are absent; its CPU code needs none.
logging.getLogger("xformers").setLevel(logging.ERROR)

HEAD_SIZES = tuple(range(32, 257, 8))
_MOST_QUERIES, _MOST_KEYS = 4, 35
"""Largest numbers of query and computed tokens of a shortened request."""


def import_xformers() -> None:
    """Import xformers' masks if xformers is installed, which takes a second or two."""
    if find_spec("xformers") is not None:
        import xformers.ops.fmha  # noqa: F401


def with_supported_head_size(params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters with a head size that the backend supports.

    Shrinking may have made it unsupported.
    """
    size = params["head_size"] // 8 * 8
    return params | {"head_size": min(max(size, HEAD_SIZES[0]), HEAD_SIZES[-1])}


def make_layer(shape: Shape, device: str) -> Any:
    """Make the layer argument of `forward`, which holds the scales of the cache."""
    scales = {"_q_scale": 1.0, "_k_scale": shape.k_scale, "_v_scale": shape.v_scale}
    tensors = {name: torch.tensor([x], device=device) for name, x in scales.items()}
    floats = {f"{name}_float": value for name, value in scales.items()}
    return SimpleNamespace(**tensors, **floats)


def impl_arguments(shape: Shape, params: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `XFormersAttentionImpl`; a window or soft cap of 0 is None."""
    return {
        "num_heads": shape.num_heads,
        "head_size": shape.head_size,
        "scale": shape.head_size**-0.5,
        "num_kv_heads": shape.num_kv_heads,
        "alibi_slopes": None,
        "sliding_window": params["window"] or None,
        "kv_cache_dtype": shape.kv_cache_dtype,
        "logits_soft_cap": params["soft_cap"] or None,
    }


def decode_mask(metadata: CommonAttentionMetadata, rows: int, block_size: int) -> Any:
    """Make xformers' mask of the first `rows` requests as published builders do.

    None without rows, without block-table columns or without xformers.
    """
    columns = metadata.block_table_tensor.shape[1]
    if not rows or not columns or find_spec("xformers") is None:
        return None
    from xformers.ops.fmha.attn_bias import PagedBlockDiagonalCausalWithOffsetPaddedKeysMask

    return PagedBlockDiagonalCausalWithOffsetPaddedKeysMask.from_seqlens(
        q_seqlen=metadata.query_start_loc_cpu.diff()[:rows].tolist(),
        kv_seqlen=metadata.seq_lens_cpu[:rows].tolist(),
        page_size=block_size,
        block_tables=metadata.block_table_tensor[:rows],
        device=metadata.block_table_tensor.device,
    )


def shortened_batch(batch: Batch) -> Batch:
    """Keep the batch's first and last request, shortened, and its layout.

    Attention over the result is cheap. Decodes and prompts stay such; a continued prompt
    becomes a new one if its computed tokens are a multiple of `_MOST_KEYS`.
    """
    rows = sorted({0, batch.num_requests - 1}) if batch.num_requests else []
    queries = [min(batch.query_lens[row], _MOST_QUERIES - row % 2) for row in rows]
    lengths = [batch.computed_lens[row] for row in rows]
    computed = [n if n <= _MOST_KEYS else n % _MOST_KEYS for n in lengths]
    plain = make_batch(queries, computed, batch.block_size, order="shuffled")
    padding = {name: min(getattr(batch, name), 3) for name in ("padded_requests", "padded_tokens")}
    lists = {name: getattr(plain, name) for name in ("query_lens", "computed_lens", "blocks")}
    return msgspec.structs.replace(batch, **lists, **padding, later=False, prompt_lens=None)
