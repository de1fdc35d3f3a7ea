"""Ranks of another engine that a rank reads its cache from (SPEC.md section 18).

Both packages share it: it runs once for each pair of engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from ..definition.definition import operation
from ..definition.roles import Int, Object

_Size = Annotated[int, Int(least=1, below=2**16)]


def _sizes_divide(
    tp_size: int, remote_tp_size: int, total_num_kv_heads: int, is_mla: bool
) -> Iterator[tuple[str, bool, str]]:
    for name, one, other in (
        ("remote_tp_size", tp_size, remote_tp_size),
        ("total_num_kv_heads", tp_size, total_num_kv_heads),
        ("total_num_kv_heads", remote_tp_size, total_num_kv_heads),
    ):
        yield name, max(one, other) % min(one, other) != 0, f"a divisor or a multiple of {one}"
    yield "total_num_kv_heads", is_mla and total_num_kv_heads > 1, "1 of latent attention"


@operation(
    results=("attention_ranks", "state_ranks", "attention_slots", "head_offset"),
    requires=(_sizes_divide,),
)
def compute_tp_mapping(
    tp_rank: Annotated[int, Int(below="tp_size")],
    tp_size: _Size,
    remote_tp_size: _Size,
    total_num_kv_heads: _Size,
    is_mla: bool,
    has_states: bool,
) -> tuple[
    Annotated[list[int], Object()],
    Annotated[list[int], Object()],
    Annotated[dict[int, int], Object()],
    int,
]:
    """Return the remote ranks that hold a rank's heads and states, and where.

    A rank of n has heads / n heads in order, or with more ranks than heads that of
    `rank * heads // n`; every rank has the one of latent attention (`is_mla`). The rank's heads
    are put together from those of `attention_ranks` in order, its states from `state_ranks`, an
    empty list without states. `attention_slots` has for each of these ranks the index of the piece
    with its first head. `head_offset` is the first local head in the remote rank's, in pieces of
    as many heads as a local rank has. Raise MetadataError for sizes of which neither divides the
    other. SPEC.md section 18.
    """
    if is_mla or tp_size >= remote_tp_size:
        attention = [tp_rank * remote_tp_size // tp_size]
    else:
        attention, seen = [], set()
        for rank in _sharing(tp_rank, tp_size, remote_tp_size):
            head = _first_head(rank, remote_tp_size, total_num_kv_heads)
            if head not in seen:
                attention.append(rank)
                seen.add(head)
    states = []
    if has_states:
        shared = tp_size < remote_tp_size
        states = [*_sharing(tp_rank, tp_size, remote_tp_size)] if shared else list(attention)
    heads = [_first_head(rank, remote_tp_size, total_num_kv_heads) for rank in attention]
    slots = {
        rank: heads.index(_first_head(rank, remote_tp_size, total_num_kv_heads))
        for rank in sorted({*attention, *states})
    }
    offset = 0
    if not is_mla and tp_size > remote_tp_size:
        local = _first_head(tp_rank, tp_size, total_num_kv_heads)
        offset = (local - heads[0]) // max(1, total_num_kv_heads // tp_size)
    return attention, states, slots, offset


def _sharing(tp_rank: int, tp_size: int, remote_tp_size: int) -> range:
    """Return the remote ranks that together have what one of fewer local ranks has."""
    count = remote_tp_size // tp_size
    return range(tp_rank * count, (tp_rank + 1) * count)


def _first_head(rank: int, tp_size: int, total_num_kv_heads: int) -> int:
    return rank * total_num_kv_heads // tp_size
