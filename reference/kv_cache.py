"""Copy blocks of the paged cache (SPEC.md section 7)."""

from __future__ import annotations

import torch

from .checks.kv_cache import check_copy_blocks, check_swap_blocks

__all__ = [
    "copy_blocks",
    "swap_blocks",
]


def swap_blocks(
    src_kv_cache: torch.Tensor, dst_kv_cache: torch.Tensor, src_to_dst: torch.Tensor
) -> None:
    """Copy blocks of one layer from one cache to another, which may be on another device.

    Caches are (2, num_blocks, block_size, num_kv_heads, head_size) of one dtype, with
    any strides; they may differ in num_blocks. `src_to_dst` is (N, 2) int64: block id
    in the source, block id in the destination. Raise MetadataError for ids outside their
    cache, a destination that occurs twice, other shapes, dtypes, devices.
    SPEC.md section 7.
    """
    check_swap_blocks(src_kv_cache, dst_kv_cache, src_to_dst)
    for source, target in src_to_dst.tolist():
        for half in range(2):
            dst_kv_cache[half, target] = src_kv_cache[half, source]


def copy_blocks(kv_caches: list[torch.Tensor], src_to_dists: torch.Tensor) -> None:
    """Copy blocks within the cache of every layer.

    Caches are as for `swap_blocks`, all on one device; layers may differ in everything
    else. `src_to_dists` is (N, 2) int64, the same for all layers. Errors are those of
    `swap_blocks`, and MetadataError for a destination that is also a source.
    SPEC.md section 7.
    """
    check_copy_blocks(kv_caches, src_to_dists)
    for kv_cache in kv_caches:
        for source, target in src_to_dists.tolist():
            for half in range(2):
                kv_cache[half, target] = kv_cache[half, source]
