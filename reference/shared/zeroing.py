"""Zeroing of the blocks that a request gets (SPEC.md section 18).

Both packages share it: it is one write of the device for each piece of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int, Object, of_shapes

_Lists = Annotated[list[list[int]], Object()]
_Ids = Annotated[list[int], Object()]


@of_shapes
def _views_agree(
    storage: torch.Tensor,
    offsets: list[int],
    shapes: list[list[int]],
    strides: list[list[int]],
    is_state: list[bool],
    num_blocks: int,
    block_ids: list[int],
) -> Iterator[tuple[str, bool, str]]:
    beyond = any(not 0 <= block < num_blocks for block in block_ids)
    yield "block_ids", beyond, f"ids below {num_blocks}"
    views = len(offsets)
    for name, of_views in (("shapes", shapes), ("strides", strides), ("is_state", is_state)):
        yield name, len(of_views) != views, f"an entry for each of {views} views"
    for offset, shape, steps in zip(offsets, shapes, strides, strict=True):
        yield "shapes", not shape or min(shape) < 1 or shape[0] % num_blocks > 0, "whole blocks"
        yield "strides", len(steps) != len(shape) or min(steps) < 0, "a step for each dimension"
        last = offset + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        yield "offsets", offset < 0 or last >= len(storage), f"views of {len(storage)} words"
        _, page = _pieces(shape, steps)
        yield "strides", page > steps[0] and shape[0] > 1, "blocks that do not overlap"


@operation(requires=(_views_agree,))
def zero_blocks(
    storage: Annotated[
        torch.Tensor, Array(shape=("W",), dtype=torch.int32, dense=True, written=True)
    ],
    offsets: _Ids,
    shapes: _Lists,
    strides: _Lists,
    is_state: Annotated[list[bool], Object()],
    num_blocks: Annotated[int, Int(least=1)],
    block_ids: _Ids,
) -> None:
    """Write zeros to the blocks that requests get, in the caches of all layers but states.

    `storage` is the int32 (W,) memory of the caches. Layer i's view of it begins at word
    `offsets[i]` and has `shapes[i]` and `strides[i]`, in words; its first dimension has one or
    more kernel blocks for each of `num_blocks`. Raise MetadataError for views beyond the memory,
    blocks that overlap and other ids. SPEC.md section 18.
    """
    for offset, shape, steps, state in zip(offsets, shapes, strides, is_state, strict=True):
        if state:
            continue
        ratio = shape[0] // num_blocks
        pieces, page = _pieces(shape, steps)
        for block in block_ids:
            for kernel_block in range(block * ratio, (block + 1) * ratio):
                for piece in pieces:
                    first = offset + kernel_block * steps[0] + piece
                    storage[first : first + page] = 0


def _pieces(shape: list[int], strides: list[int]) -> tuple[list[int], int]:
    """Return where a kernel block's pieces begin, and the words that each spans."""
    dims = [*zip(shape[1:], strides[1:], strict=True)]
    outer = [[i * step for i in range(n)] for n, step in dims if step > strides[0]]
    page = 1 + sum((n - 1) * step for n, step in dims if step <= strides[0])
    return [sum(steps) for steps in product(*outer)], page
