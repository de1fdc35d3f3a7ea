"""Copy blocks between caches in host memory (SPEC.md section 7)."""

from __future__ import annotations

import torch

from .arrays import Array
from .block_runs import BlockRuns
from .compiled import compiled


def copy_runs(runs: BlockRuns, pairs: torch.Tensor) -> None:
    """Copy block `pairs[p, 0]` of the source to block `pairs[p, 1]` of the target, all on the CPU.

    Bound by memory: each element is read once and written once.
    """
    source, target = runs
    _copy(
        _flat(source),
        _flat(target),
        pairs.contiguous().numpy(),
        source.stride(),
        target.stride(),
        tuple(target.shape[2:]),
    )


def _flat(view: torch.Tensor) -> Array:
    """Return the memory from the first to the last element of the view."""
    extent = 1 + sum((n - 1) * s for n, s in zip(view.shape, view.stride(), strict=True))
    flat: Array = view.as_strided((extent if view.numel() else 0,), (1,)).numpy()
    return flat


@compiled
def _copy(
    source: Array,
    target: Array,
    pairs: Array,
    source_strides: tuple[int, ...],
    target_strides: tuple[int, ...],
    sizes: tuple[int, ...],
) -> None:
    n2, n1, n0 = sizes
    from_half, from_block, from2, from1, from0 = source_strides
    to_half, to_block, to2, to1, to0 = target_strides
    for p in range(len(pairs)):
        for half in range(2):
            from_start = half * from_half + pairs[p, 0] * from_block
            to_start = half * to_half + pairs[p, 1] * to_block
            for i2 in range(n2):
                for i1 in range(n1):
                    a = from_start + i2 * from2 + i1 * from1
                    b = to_start + i2 * to2 + i1 * to1
                    if from0 == 1 and to0 == 1:
                        target[b : b + n0] = source[a : a + n0]
                    else:
                        for i0 in range(n0):
                            target[b + i0 * to0] = source[a + i0 * from0]
