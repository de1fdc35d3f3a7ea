"""Two paged caches as the plainest memory in which their blocks can be copied."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WIDER: Final = (torch.int64, torch.int32, torch.int16)


class BlockRuns(NamedTuple):
    """Source and destination as integer tensors (2, num_blocks, n2, n1, n0) of equal n."""

    source: torch.Tensor
    target: torch.Tensor


def block_runs(source: torch.Tensor, target: torch.Tensor) -> BlockRuns:
    """The caches with equal elements in equal places, in as few and long runs as there are.

    Both are (2, num_blocks, block_size, num_kv_heads, head_size) with equal block shapes
    and dtypes. Dimensions within a block follow the destination's memory, neighbours
    become one where both caches allow it, and a run is counted in the widest words that
    fit. No memory is touched.
    """
    integers = _INTEGERS[source.element_size()]
    sizes, source_strides, target_strides = _merged(source, target)
    views = [
        cache.view(integers).as_strided((*cache.shape[:2], *sizes), (*cache.stride()[:2], *strides))
        for cache, strides in ((source, source_strides), (target, target_strides))
    ]
    for word in _WIDER:
        if all(_can_widen(view, word.itemsize) for view in views):
            return BlockRuns(*(view.view(word) for view in views))
    return BlockRuns(*views)


def _merged(source: torch.Tensor, target: torch.Tensor) -> tuple[list[int], list[int], list[int]]:
    """Sizes and both strides of three dimensions, the innermost last."""
    dims = list(zip(source.shape[2:], source.stride()[2:], target.stride()[2:], strict=True))
    dims = sorted((dim for dim in dims if dim[0] != 1), key=lambda dim: -dim[2])
    merged: list[tuple[int, int, int]] = []
    for size, from_stride, to_stride in dims:
        follows = merged and merged[-1][1:] == (size * from_stride, size * to_stride)
        outer = merged.pop()[0] if follows else 1
        merged.append((outer * size, from_stride, to_stride))
    merged = [(1, 0, 0)] * (3 - len(merged)) + merged
    sizes, from_strides, to_strides = (list(column) for column in zip(*merged, strict=True))
    return sizes, from_strides, to_strides


def _can_widen(view: torch.Tensor, width: int) -> bool:
    """Whether words of `width` bytes divide the view's runs, strides and address."""
    itemsize = view.element_size()
    if width <= itemsize or view.stride(-1) != 1 or view.data_ptr() % width:
        return False
    lengths = (view.shape[-1], view.storage_offset(), *view.stride()[:-1])
    return all(length * itemsize % width == 0 for length in lengths)
