"""Chunks of context that latent attention reads through a workspace (SPEC.md section 22).

Both packages share it: it plans a step on the host, with a few numbers a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from math import lcm
from typing import Annotated, Any

import torch

from ..definition.definition import operation
from ..definition.roles import Array, Int, Object
from ..interface.context_chunks import ChunkedContext, ContextChunk

_Lengths = Annotated[torch.Tensor, Array("numbers", ("N",), least=0, on_cpu=True)]
_Offsets = Annotated[torch.Tensor, Array("numbers", ("N+1",), least=0, on_cpu=True)]
_Size = Annotated[int, Int(least=1)]


def _fits_workspace(
    prefill_query_start_loc_cpu: torch.Tensor,
    chunked_prefill_workspace_size: int,
    block_size: int,
    align_chunk_to_block: bool,
    dcp_world_size: int,
    dcp_local_block_size: int,
) -> Iterator[tuple[str, Any, str]]:
    offsets = prefill_query_start_loc_cpu
    yield "prefill_query_start_loc_cpu", offsets[:1] != 0, "0 at index 0"
    yield "prefill_query_start_loc_cpu", offsets.diff() < 0, "offsets that rise"
    step = _alignment(block_size, align_chunk_to_block, dcp_world_size, dcp_local_block_size)
    below = chunked_prefill_workspace_size < step
    yield "chunked_prefill_workspace_size", below, f"at least {step} rows"


@operation(requires=(_fits_workspace,))
def build_mla_chunked_context_metadata(
    context_lens_cpu: _Lengths,
    prefill_query_start_loc_cpu: _Offsets,
    chunked_prefill_workspace_size: _Size,
    block_size: _Size,
    align_chunk_to_block: bool,
    dcp_world_size: _Size,
    dcp_local_block_size: _Size,
) -> Annotated[ChunkedContext, Object()] | None:
    """Return the chunks in which prefills attend to their contexts, None without context.

    `context_lens_cpu` (N,) and the offsets of the queries (N+1,) are int32 or int64 on the CPU,
    in tokens. A chunk has contexts of adjacent requests, as many rows as the workspace holds; a
    context is cut at multiples of the alignment, `block_size` if asked for and, of several ranks
    that share the workspace, `dcp_world_size * dcp_local_block_size`. Raise MetadataError for
    negative lengths, offsets that do not rise from 0 and a workspace below the alignment.
    SPEC.md section 22.
    """
    contexts, offsets = context_lens_cpu.tolist(), prefill_query_start_loc_cpu.tolist()
    if not any(contexts):
        return None
    step = _alignment(block_size, align_chunk_to_block, dcp_world_size, dcp_local_block_size)
    turn = dcp_world_size * dcp_local_block_size

    def local(rows: int) -> int:
        """Return the rows that a rank has, whole turns."""
        return rows if dcp_world_size == 1 else -(-rows // turn) * dcp_local_block_size

    most = chunked_prefill_workspace_size // dcp_world_size
    plans = _plans(contexts, most, step, local)
    chunks = [_chunk(plan, offsets, local, dcp_world_size > 1) for plan in plans]
    empty = [slice(*offsets[r : r + 2]) for r, length in enumerate(contexts) if not length]
    return ChunkedContext(chunks, empty)


_Part = tuple[int, int, int]
"""Request, and the first and last row of its context in a chunk."""


def _plans(
    contexts: list[int], most: int, step: int, local: Callable[[int], int]
) -> list[list[_Part]]:
    """Return the parts of each chunk."""
    plans: list[list[_Part]] = []
    room = 0  # rows of a rank that the last chunk can take
    for request, length in enumerate(contexts):
        if not length:
            room = 0  # requests of a chunk are adjacent
        start = 0
        while start < length:
            end = length
            if local(length) - local(start) > room:
                end = start + step * min(room // local(step), (length - start - 1) // step)
            if end > start:
                plans[-1].append((request, start, end))
                room -= local(end) - local(start)
                start = end
            if start < length:
                plans.append([])
                room = most
    return plans


def _chunk(
    parts: list[_Part], offsets: list[int], local: Callable[[int], int], shared: bool
) -> ContextChunk:
    first, last = parts[0][0], parts[-1][0] + 1
    lengths = [end - start for _, start, end in parts]
    local_starts = [local(start) for _, start, _ in parts]
    local_lengths = [local(end) - local(start) for _, start, end in parts]
    rows = [row for row, length in enumerate(lengths) for _ in range(length)]
    return ContextChunk(
        request_slice=slice(first, last),
        token_slice=slice(offsets[first], offsets[last]),
        continuation_token_end=offsets[first + 1],
        is_continuation=parts[0][1] > 0,
        query_start_loc=_numbers([offset - offsets[first] for offset in offsets[first : last + 1]]),
        starts=_numbers(local_starts),
        seq_lens=_numbers(lengths),
        cu_seq_lens=_numbers(accumulate(lengths, initial=0)),
        token_to_seq=_numbers(rows),
        padded_local_seq_lens=local_lengths if shared else None,
        padded_local_cu_seq_lens=(
            _numbers(accumulate(local_lengths, initial=0)) if shared else None
        ),
        local_starts=local_starts if shared else None,
    )


def _numbers(values: Any) -> torch.Tensor:
    return torch.tensor([*values], dtype=torch.int32)


def _alignment(
    block_size: int, align_chunk_to_block: bool, dcp_world_size: int, dcp_local_block_size: int
) -> int:
    """Return the rows at whose multiples a context is cut."""
    step = block_size if align_chunk_to_block else 1
    return lcm(step, dcp_world_size * dcp_local_block_size) if dcp_world_size > 1 else step
