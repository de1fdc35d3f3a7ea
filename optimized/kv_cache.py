"""Copy blocks of the paged cache (SPEC.md section 7)."""

from __future__ import annotations

import torch

from attnproof.reference.checks.kv_cache import check_copy_blocks, check_swap_blocks

from .checking import checks
from .dispatch import download, on_device, staging, upload
from .host.block_runs import block_runs
from .host.kv_cache import copy_runs

__all__ = [
    "copy_blocks",
    "swap_blocks",
]

_checked = checks.follow(globals())


def swap_blocks(
    src_kv_cache: torch.Tensor, dst_kv_cache: torch.Tensor, src_to_dst: torch.Tensor
) -> None:
    """Copy blocks of one layer from one cache to another, which may be on another device.

    Result and errors as in `reference`. On one device: one kernel, no sync. To a device:
    one copy of all blocks through pinned memory, no sync. From a device to the CPU: one
    copy of all blocks, with a sync. SPEC.md section 7.
    """
    if _checked or not on_device(dst_kv_cache):  # kernels skip ids outside their caches
        check_swap_blocks(src_kv_cache, dst_kv_cache, src_to_dst)
    if not src_to_dst.shape[0]:
        return
    if src_kv_cache.device == dst_kv_cache.device:
        _copy(src_kv_cache, dst_kv_cache, _pairs_on(src_to_dst, dst_kv_cache.device))
    else:
        _copy_across(src_kv_cache, dst_kv_cache, src_to_dst)


def copy_blocks(kv_caches: list[torch.Tensor], src_to_dists: torch.Tensor) -> None:
    """Copy blocks within the cache of every layer.

    Result and errors as in `reference`. On a device: one kernel a layer, no sync.
    SPEC.md section 7.
    """
    if _checked or not kv_caches or not on_device(kv_caches[0]):
        check_copy_blocks(kv_caches, src_to_dists)
    if not kv_caches or not src_to_dists.shape[0]:
        return
    pairs = _pairs_on(src_to_dists, kv_caches[0].device)
    for kv_cache in kv_caches:
        _copy(kv_cache, kv_cache, pairs)


def _copy(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy blocks between caches on the device of `pairs`."""
    runs = block_runs(source, target)
    if not on_device(target):
        copy_runs(runs, pairs)
        return

    from .kernels.kv_cache import copy_runs_on_device

    copy_runs_on_device(runs, pairs)


def _copy_across(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy blocks between devices: gather them, copy all at once, scatter them."""
    count = pairs.shape[0]
    places = torch.arange(count)
    shape = (2, count, *source.shape[2:])
    length = 2 * count * source[0, 0].numel()
    if source.is_cpu:
        gathered = staging(length, source.dtype, target.device)
    else:
        gathered = torch.empty(length, dtype=source.dtype, device=source.device)
    sources = torch.stack([pairs[:, 0], places], dim=1)
    _copy(source, gathered.view(shape), _pairs_on(sources, source.device))
    moved = download(gathered) if target.is_cpu else upload(gathered, target.device)
    targets = torch.stack([places, pairs[:, 1]], dim=1)
    _copy(moved.view(shape), target, _pairs_on(targets, target.device))


def _pairs_on(pairs: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the pairs on `device`, copied from the CPU asynchronously."""
    if pairs.device == device:
        return pairs
    staged = staging(pairs.numel(), pairs.dtype, device)
    return upload(staged.copy_(pairs.reshape(-1)), device).view(-1, 2)
