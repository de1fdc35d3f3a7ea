"""Checks of `swap_blocks` and `copy_blocks` (SPEC.md section 7).

Block ids are read if they are on the CPU; reading them on a device would synchronise.
"""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError

SWAP, COPY = "swap_blocks", "copy_blocks"
_CPU = torch.device("cpu")
_MAX_ELEMENT_BYTES = 8
"""Largest element, in bytes, that can be copied as one integer."""


def check_swap_blocks(src: torch.Tensor, dst: torch.Tensor, src_to_dst: torch.Tensor) -> None:
    """Require valid arguments of `swap_blocks`; device tensors are not read."""
    _check_cache(SWAP, "src_kv_cache", src)
    _check_cache(SWAP, "dst_kv_cache", dst)
    _check_writable(SWAP, "dst_kv_cache", dst)
    if dst.shape[2:] != src.shape[2:]:
        got = f"with blocks of shape {tuple(dst.shape[2:])}"
        expected = f"{tuple(src.shape[2:])}, as in src_kv_cache"
        raise MetadataError(SWAP, "dst_kv_cache", got, expected)
    if dst.dtype != src.dtype:
        expected = f"{src.dtype}, as src_kv_cache"
        raise MetadataError(SWAP, "dst_kv_cache", f"of dtype {dst.dtype}", expected)
    one_device = src.device == dst.device
    _check_pairs(SWAP, "src_to_dst", src_to_dst, dst.device if one_device else _CPU)
    if src_to_dst.is_cpu:
        same = one_device and src.data_ptr() == dst.data_ptr()
        _check_ids(SWAP, "src_to_dst", src_to_dst, src.shape[1], dst.shape[1], same_cache=same)


def check_copy_blocks(kv_caches: list[torch.Tensor], src_to_dists: torch.Tensor) -> None:
    """Require valid arguments of `copy_blocks`; device tensors are not read."""
    if not isinstance(kv_caches, (list, tuple)):
        got = type(kv_caches).__name__
        raise TypeError(f"{COPY}: kv_caches is {got}, expected a list of torch.Tensor")
    for layer, cache in enumerate(kv_caches):
        field = f"kv_caches[{layer}]"
        _check_cache(COPY, field, cache)
        _check_writable(COPY, field, cache)
        if cache.device != kv_caches[0].device:
            expected = f"on {kv_caches[0].device}, as the first layer's"
            raise MetadataError(COPY, field, f"on {cache.device}", expected)
    device = kv_caches[0].device if kv_caches else _CPU
    _check_pairs(COPY, "src_to_dists", src_to_dists, device)
    if src_to_dists.is_cpu and kv_caches:
        blocks = min(cache.shape[1] for cache in kv_caches)
        _check_ids(COPY, "src_to_dists", src_to_dists, blocks, blocks, same_cache=True)


def _check_cache(operation: str, field: str, cache: object) -> None:
    if not isinstance(cache, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(cache).__name__}, expected torch.Tensor")
    if cache.ndim != 5 or cache.shape[0] != 2:
        expected = "(2, num_blocks, block_size, num_kv_heads, head_size)"
        raise MetadataError(operation, field, f"of shape {tuple(cache.shape)}", expected)
    if cache.element_size() > _MAX_ELEMENT_BYTES:
        expected = f"elements of at most {_MAX_ELEMENT_BYTES} bytes"
        raise MetadataError(operation, field, f"of dtype {cache.dtype}", expected)


def _check_writable(operation: str, field: str, cache: torch.Tensor) -> None:
    """Reject a cache whose elements share memory, such as an expanded tensor."""
    for size, stride in zip(cache.shape, cache.stride(), strict=True):
        if size > 1 and stride == 0 and cache.numel():
            raise MetadataError(operation, field, "expanded", "memory for every element")


def _check_pairs(operation: str, field: str, pairs: object, device: torch.device) -> None:
    """Require (N, 2) int64 on the CPU or on `device`."""
    if not isinstance(pairs, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(pairs).__name__}, expected torch.Tensor")
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise MetadataError(operation, field, f"of shape {tuple(pairs.shape)}", "shape (N, 2)")
    if pairs.dtype != torch.int64:
        raise MetadataError(operation, field, f"of dtype {pairs.dtype}", "int64")
    if pairs.device not in (_CPU, device):
        allowed = "on the CPU" if device == _CPU else f"on the CPU or {device}"
        raise MetadataError(operation, field, f"on {pairs.device}", allowed)


def _check_ids(
    operation: str,
    field: str,
    pairs: torch.Tensor,
    num_sources: int,
    num_targets: int,
    *,
    same_cache: bool,
) -> None:
    """Require ids within their caches, and a result independent of the order of the copies."""
    ids = pairs.tolist()
    sources, targets = {source for source, _ in ids}, {target for _, target in ids}
    # Sets detect invalid ids fast; the loop below names the first one but is slower than the copy.
    if (
        min(sources | targets, default=0) >= 0
        and max(sources, default=-1) < num_sources
        and max(targets, default=-1) < num_targets
        and len(targets) == len(ids)
        and not (same_cache and sources & targets)
    ):
        return
    written: set[int] = set()
    for index, (source, target) in enumerate(ids):
        where, got = f"{field}[{index}]", f"({source}, {target})"
        if not 0 <= source < num_sources:
            raise MetadataError(operation, where, got, f"a source from 0 to {num_sources - 1}")
        if not 0 <= target < num_targets:
            expected = f"a destination from 0 to {num_targets - 1}"
            raise MetadataError(operation, where, got, expected)
        if target in written:
            raise MetadataError(operation, where, got, "a destination that no other pair has")
        if same_cache and target in sources:
            raise MetadataError(operation, where, got, "a destination that is no pair's source")
        written.add(target)
