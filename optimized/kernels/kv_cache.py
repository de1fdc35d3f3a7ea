"""Copy blocks from one paged cache to another, or within one."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..dispatch import launching_on
from ..host.block_runs import BlockRuns

_BLOCK = 1024
"""Words per program."""


@triton.jit(do_not_specialize=["num_sources", "num_targets"])
def _copy_blocks_kernel(
    source,
    target,
    pairs,
    pair_stride,
    id_stride,
    num_sources,
    num_targets,
    source_half,
    source_block,
    source2,
    source1,
    source0,
    target_half,
    target_block,
    target2,
    target1,
    target0,
    n2,
    n1,
    n0,
    BLOCK: tl.constexpr,
):
    """Program (2p + h, b): words [b * BLOCK, (b + 1) * BLOCK) of half h of pair p's block.

    Offsets have 64 bits, since a cache may have more than 2**31 elements. A pair with an id
    outside its cache copies nothing: the host has not checked it. Bound by memory, each
    word read once and written once. If a block is one run, as in both usual layouts, n1 and
    n2 are 1 and the compiler removes them.
    """
    which = tl.program_id(0)
    half = (which % 2).to(tl.int64)
    pair = pairs + (which // 2).to(tl.int64) * pair_stride
    from_id, to_id = tl.load(pair), tl.load(pair + id_stride)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = word // n0
    i0 = (word - row * n0).to(tl.int64)
    i1, i2 = (row % n1).to(tl.int64), (row // n1).to(tl.int64)
    inside = (from_id >= 0) & (from_id < num_sources) & (to_id >= 0) & (to_id < num_targets)
    copied = inside & (word < n2 * n1 * n0)
    read = half * source_half + from_id * source_block + i2 * source2 + i1 * source1 + i0 * source0
    write = half * target_half + to_id * target_block + i2 * target2 + i1 * target1 + i0 * target0
    tl.store(target + write, tl.load(source + read, mask=copied), mask=copied)


def copy_runs_on_device(runs: BlockRuns, pairs: torch.Tensor) -> None:
    """Copy block `pairs[p, 0]` of the source to block `pairs[p, 1]` of the target, by one launch.

    All three are on one device; there is no sync.
    """
    source, target = runs
    words = target[0, 0].numel() if target.shape[1] else 0
    if not words:
        return
    with launching_on(target.device):
        _copy_blocks_kernel[(2 * pairs.shape[0], triton.cdiv(words, _BLOCK))](
            source,
            target,
            pairs,
            *pairs.stride(),
            source.shape[1],
            target.shape[1],
            *source.stride(),
            *target.stride(),
            *target.shape[2:],
            BLOCK=_BLOCK,
        )
