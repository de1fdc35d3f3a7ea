"""Reduce the layouts of two paged caches to a few dimensions of wide words for copying."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import torch

from .cache_rows import start_of

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WIDER: Final = (torch.int64, torch.int32, torch.int16)


class BlockRuns(NamedTuple):
    """Source and target caches as integer tensors (2, num_blocks, n2, n1, n0) of equal n."""

    source: torch.Tensor
    target: torch.Tensor


def block_runs(source: torch.Tensor, target: torch.Tensor) -> BlockRuns:
    """Return views of the two caches with corresponding elements at the same indices.

    Both caches are (2, num_blocks, block_size, num_kv_heads, head_size) with equal block
    shapes and dtypes. The dimensions within a block are ordered as in the target's memory,
    adjacent dimensions are merged if both caches allow it, and elements are combined into
    the widest words that fit. No element is read.
    """
    plan = _plan(
        source.shape[2:],
        source.stride(),
        target.stride(),
        source.element_size(),
        start_of((source, target)),
    )
    written = _words(target, plan, plan.target_strides)
    if source is target:
        return BlockRuns(written, written)
    return BlockRuns(_words(source, plan, plan.source_strides), written)


class _Plan(NamedTuple):
    """Shape and strides of both views; strides in elements, those of half and block first."""

    sizes: tuple[int, ...]
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]
    integers: torch.dtype
    """Integer dtype of the size of an element."""
    words: torch.dtype
    """Integer dtype of a word, at least as wide as an element."""


def _words(cache: torch.Tensor, plan: _Plan, strides: tuple[int, ...]) -> torch.Tensor:
    view = cache.view(plan.integers).as_strided((*cache.shape[:2], *plan.sizes), strides)
    return view if plan.words is plan.integers else view.view(plan.words)


@lru_cache(64)  # the layers of a model have few shapes, and making a plan takes longer than a copy
def _plan(
    shape: torch.Size,
    source_strides: tuple[int, ...],
    target_strides: tuple[int, ...],
    itemsize: int,
    start: int,
) -> _Plan:
    sizes, source_inner, target_inner = _merged(shape, source_strides[2:], target_strides[2:])
    reads = (*source_strides[:2], *source_inner)
    writes = (*target_strides[:2], *target_inner)
    words = _INTEGERS[itemsize]
    if source_inner[-1] == target_inner[-1] == 1:
        in_elements = (sizes[-1], *reads[:-1], *writes[:-1])
        lengths = [start, *(length * itemsize for length in in_elements)]
        fitting = (w for w in _WIDER if all(length % w.itemsize == 0 for length in lengths))
        words = max(words, next(fitting, words), key=lambda word: word.itemsize)
    return _Plan(tuple(sizes), reads, writes, _INTEGERS[itemsize], words)


def _merged(
    shape: torch.Size, source_strides: tuple[int, ...], target_strides: tuple[int, ...]
) -> tuple[list[int], list[int], list[int]]:
    """Return sizes, source strides and target strides of three dimensions, innermost last."""
    dims = zip(shape, source_strides, target_strides, strict=True)
    merged: list[tuple[int, int, int]] = []
    for size, from_stride, to_stride in sorted(dims, key=lambda dim: -dim[2]):
        if size == 1:
            continue
        follows = merged and merged[-1][1:] == (size * from_stride, size * to_stride)
        outer = merged.pop()[0] if follows else 1
        merged.append((outer * size, from_stride, to_stride))
    merged = [(1, 0, 0)] * (3 - len(merged)) + merged
    sizes, from_strides, to_strides = (list(column) for column in zip(*merged, strict=True))
    return sizes, from_strides, to_strides
