"""Block ids of a transfer between two engines (SPEC.md section 18).

Both packages share it: it makes a few short lists of a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from ..definition.definition import operation
from ..definition.roles import Int, Object

BlockIds = Annotated[list[list[int]], Object()]
"""Block ids of a request in each group of layers."""
_States = Annotated[list[bool], Object()]
_Ratio = Annotated[int, Int(least=1, below=2**16)]


def _groups_agree(
    first: str, second: str, one: list[list[int]], other: list[list[int]], is_state: list[bool]
) -> Iterator[tuple[str, bool, str]]:
    groups = len(is_state)
    for name, lists in ((first, one), (second, other)):
        yield name, len(lists) != groups, f"a list for each of {groups} groups"
        yield name, any(block < 0 for ids in lists for block in ids), "block ids of at least 0"


def _sides_agree(
    decode_block_ids: list[list[int]],
    prefill_block_ids: list[list[int]],
    decode_ratio: int,
    prefill_ratio: int,
    is_state: list[bool],
) -> Iterator[tuple[str, bool, str]]:
    yield from _groups_agree(
        "decode_block_ids", "prefill_block_ids", decode_block_ids, prefill_block_ids, is_state
    )
    hybrid, alike = any(is_state), decode_ratio == prefill_ratio
    yield "prefill_ratio", not (hybrid or alike), "decode_ratio, without a group of states"
    for decode, prefill, state in zip(decode_block_ids, prefill_block_ids, is_state, strict=True):
        more = len(decode) - len(prefill)
        name = "decode_block_ids"
        if state or alike:
            yield name, more > hybrid, f"at most {hybrid:d} blocks more than the prefill"
        else:
            more = len(decode) * decode_ratio - len(prefill) * prefill_ratio
            most = decode_ratio + prefill_ratio
            yield name, abs(more) > most, f"a list that differs by at most {most} kernel blocks"


@operation(results=("decode", "prefill"), requires=(_sides_agree,))
def pair_block_ids(
    decode_block_ids: BlockIds,
    prefill_block_ids: BlockIds,
    decode_ratio: _Ratio,
    prefill_ratio: _Ratio,
    is_state: _States,
) -> tuple[BlockIds, BlockIds]:
    """Return the kernel blocks that a transfer from prefill to decode pairs, in each group.

    Each side has the block ids of a request by group, and `ratio` kernel blocks a block. The
    lists of the decode side lack what it has cached: the last blocks of the prefill are those of
    them. With two ratios nothing is cached, and the first ones are paired. `is_state` says for
    each group whether its blocks are states, which have no kernel blocks. Raise MetadataError for
    lists that cannot be paired. SPEC.md section 18.
    """
    pairs = []
    for decode, prefill, state in zip(decode_block_ids, prefill_block_ids, is_state, strict=True):
        ours = list(decode) if state else _kernel_blocks(decode, decode_ratio)
        theirs = list(prefill) if state else _kernel_blocks(prefill, prefill_ratio)
        count = min(len(ours), len(theirs))
        skipped = len(theirs) - count if state or decode_ratio == prefill_ratio else 0
        pairs.append((ours[:count], theirs[skipped : skipped + count]))
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]


def _kernel_blocks(block_ids: list[int], ratio: int) -> list[int]:
    """Return the kernel blocks of blocks that each consist of `ratio`."""
    return [block * ratio + part for block in block_ids for part in range(ratio)]


def _local_and_remote_agree(
    local_block_ids: list[list[int]], remote_block_ids: list[list[int]], is_state: list[bool]
) -> Iterator[tuple[str, bool, str]]:
    local = local_block_ids or [[] for _ in is_state]
    yield from _groups_agree(
        "local_block_ids", "remote_block_ids", local, remote_block_ids, is_state
    )


@operation(results=("local", "remote"), requires=(_local_and_remote_agree,))
def map_block_ids_for_block_size_ratio(
    local_block_ids: BlockIds,
    remote_block_ids: BlockIds,
    block_size_ratio: _Ratio,
    is_state: _States,
) -> tuple[BlockIds, BlockIds]:
    """Return local block ids in blocks of the remote size, and the remote ones unchanged.

    A local block is `block_size_ratio` remote ones, except of a group of states. Blocks beyond
    the remote list are left out, as they hold no token. Without any local block the local result
    is an empty list, and `local_block_ids` may be one. Raise MetadataError for lists of other
    groups and negative ids. SPEC.md section 18.
    """
    mapped = []
    for group, remote in enumerate(remote_block_ids):
        local = local_block_ids[group] if local_block_ids else []
        if not is_state[group]:
            local = _kernel_blocks(local, block_size_ratio)[: len(remote)]
        mapped.append(list(local))
    return mapped if any(mapped) else [], [list(remote) for remote in remote_block_ids]
