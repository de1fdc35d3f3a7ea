"""Copies between blocks of a cache and chunks in host memory (SPEC.md section 18).

Both packages share it: a copy engine moves the bytes, and the lists are those of one request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int, Object, of_shapes

_Ids = Annotated[list[int], Object()]
_Size = Annotated[int, Int(least=1, below=2**16)]


def _lists_agree(
    block_ids: list[int], chunk_ids: list[int], group_sizes: list[int], block_indices: list[int]
) -> Iterator[tuple[str, bool, str]]:
    yield "group_sizes", min(group_sizes, default=0) < 0, "numbers of blocks"
    yield "group_sizes", sum(group_sizes) != len(block_ids), f"a sum of {len(block_ids)}"
    groups = len(group_sizes)
    yield "block_indices", len(block_indices) != groups, f"an index for each of {groups} groups"
    yield "block_indices", min(block_indices, default=0) < 0, "indices of at least 0"
    for name, ids in (("block_ids", block_ids), ("chunk_ids", chunk_ids)):
        yield name, min(ids, default=0) < 0, "ids of at least 0"
        yield name, len({*ids}) < len(ids), "distinct ids"


@of_shapes
def _chunks_fit(
    source: torch.Tensor,
    target: torch.Tensor,
    block_ids: list[int],
    chunk_ids: list[int],
    group_sizes: list[int],
    block_indices: list[int],
    blocks_per_chunk: int,
    page_bytes: int,
    to_host: bool,
) -> Iterator[tuple[str, bool, str]]:
    groups = zip(group_sizes, block_indices, strict=True)
    needed = sum(_chunks_of(size, index, blocks_per_chunk) for size, index in groups)
    yield "chunk_ids", len(chunk_ids) != needed, f"{needed} chunks"
    cache, host = (source, target) if to_host else (target, source)
    wide = host.shape[1] != cache.shape[1] * blocks_per_chunk
    yield "blocks_per_chunk", wide, "the blocks of a chunk's row"
    yield "page_bytes", page_bytes > cache.shape[1], f"at most {cache.shape[1]}"
    for name, ids, rows in (("block_ids", block_ids, cache), ("chunk_ids", chunk_ids, host)):
        yield name, max(ids, default=-1) >= len(rows), f"ids below {len(rows)}"


@operation(requires=(_lists_agree, _chunks_fit))
def copy_offloaded_blocks(
    source: Annotated[torch.Tensor, Array(shape=("S", "P"), dtype=torch.int8, dense=True)],
    target: Annotated[
        torch.Tensor, Array(shape=("D", "Q"), dtype=torch.int8, dense=True, written=True)
    ],
    block_ids: _Ids,
    chunk_ids: _Ids,
    group_sizes: _Ids,
    block_indices: _Ids,
    blocks_per_chunk: _Size,
    page_bytes: _Size,
    to_host: bool,
) -> None:
    """Copy the blocks of a request into chunks in host memory, or back.

    `source` and `target` are int8 (blocks, bytes of a block) and (chunks, `blocks_per_chunk` as
    many bytes), in this order if `to_host`. Group g has the next `group_sizes[g]` of `block_ids`,
    of which the first is block `block_indices[g]` of the request, and as many of `chunk_ids` as
    hold them: a chunk begins at a multiple of `blocks_per_chunk`. The first `page_bytes` bytes of
    each block are copied, all other bytes of `target` stay. Raise MetadataError for lists and
    sizes that disagree. SPEC.md section 18.
    """
    first_block = first_chunk = 0
    for size, index in zip(group_sizes, block_indices, strict=True):
        skipped = index % blocks_per_chunk
        for k in range(size):
            block = block_ids[first_block + k]
            chunk = chunk_ids[first_chunk + (skipped + k) // blocks_per_chunk]
            width = source.shape[1] if to_host else target.shape[1]
            at = (skipped + k) % blocks_per_chunk * width
            if to_host:
                target[chunk, at : at + page_bytes] = source[block, :page_bytes]
            else:
                target[block, :page_bytes] = source[chunk, at : at + page_bytes]
        first_block += size
        first_chunk += _chunks_of(size, index, blocks_per_chunk)


def _chunks_of(size: int, index: int, blocks_per_chunk: int) -> int:
    """Return the chunks that hold `size` blocks of a request from block `index` on."""
    return -(-(size + index % blocks_per_chunk) // blocks_per_chunk) if size else 0
