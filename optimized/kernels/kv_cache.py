"""Copy blocks from one paged cache to another, or within one."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton.language as tl

from ..host.block_runs import BlockRuns
from .launcher import cdiv, launch
from .versions import alignment_of, data_kernel, form_for, word_layout

_BLOCK = 1024
"""Words per program."""


@data_kernel("source", "target")
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
    ONE_RUN: tl.constexpr,
    DENSE: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (2p + h, b): words [b * BLOCK, (b + 1) * BLOCK) of half h of pair p's block.

    Offsets have 64 bits, since a cache may have more than 2**31 elements. A pair with an id
    outside its cache copies nothing: the host has not checked it. Bound by memory, each
    word read once and written once. With ONE_RUN, as in both usual layouts, n1 and n2 are 1;
    with DENSE both innermost strides are 1. Other strides and n0 count ALIGNED words, so that
    the compiler can prove their alignment.
    """
    n0 = n0 * ALIGNED
    if DENSE:
        source0, target0 = 1, 1
    which = tl.program_id(0)
    half = (which % 2).to(tl.int64)
    pair = pairs + (which // 2).to(tl.int64) * pair_stride
    from_id, to_id = tl.load(pair), tl.load(pair + id_stride)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    read = half * source_half + from_id * source_block
    write = half * target_half + to_id * target_block
    if ONE_RUN:
        i0, words = word.to(tl.int64), n0
    else:
        row = word // n0
        i0, words = (word - row * n0).to(tl.int64), n2 * n1 * n0
        i1, i2 = (row % n1).to(tl.int64), (row // n1).to(tl.int64)
        read += i2 * source2 + i1 * source1
        write += i2 * target2 + i1 * target1
    inside = (from_id >= 0) & (from_id < num_sources) & (to_id >= 0) & (to_id < num_targets)
    copied = inside & (word < words)
    read, write = read * ALIGNED + i0 * source0, write * ALIGNED + i0 * target0
    tl.store(target + write, tl.load(source + read, mask=copied), mask=copied)


def copy_runs_on_device(runs: BlockRuns, pairs: torch.Tensor) -> None:
    """Copy block `pairs[p, 0]` of the source to block `pairs[p, 1]` of the target, by one launch.

    All three are on one device; there is no sync.
    """
    source, target = runs
    blocks, n2, n1, n0 = target.shape[1:]
    words = n2 * n1 * n0
    if not blocks or not words:
        return
    strides = source.stride(), target.stride()
    aligned, outer, inner = word_layout(alignment_of(runs), n0, *strides)
    launch(
        form_for(_copy_blocks_kernel, aligned),
        target.device,
        (2 * pairs.shape[0], cdiv(words, _BLOCK)),
        source,
        target,
        pairs,
        *pairs.stride(),
        source.shape[1],
        target.shape[1],
        *outer[:4],
        inner[0],
        *outer[4:],
        inner[1],
        n2,
        n1,
        n0 // aligned,
        ONE_RUN=n2 == n1 == 1,
        DENSE=inner == (1, 1),
        ALIGNED=aligned,
        BLOCK=_BLOCK,
    )
