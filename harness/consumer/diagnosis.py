"""Describe which keys a token sees wrongly: their number, request and position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.consumer.visible_keys import BEYOND, ExpectedTokens, Mask, VisibleKeys


class Mistake(NamedTuple):
    """Description of the keys that a token sees wrongly."""

    about: str
    """Part of the metadata at fault: "lengths" or "blocks"."""
    kind: str
    """Short text without indices, such as "sees a key twice"."""
    detail: str
    """Text that names the token, its keys and their positions."""


def token_name(expected: ExpectedTokens, token: int) -> str:
    """Return the token's name within its request, such as "token 5 of request 1"."""
    if token >= len(expected.requests):
        return f"padded token {token}"
    return f"token {expected.indices[token]} of request {expected.requests[token]}"


def describe_mistake(
    expected: ExpectedTokens,
    required: VisibleKeys,
    seen: VisibleKeys,
    token: int,
    index: int,
    mask: Mask,
) -> Mistake:
    """Describe the difference between the required and the seen keys of one token.

    `token` is its index in the batch, `index` its index in `required` and `seen`.
    """
    right, wrong = required.slots(index), seen.slots(index)
    name = token_name(expected, token)
    counts = f"sees {_keys(len(wrong))}, must see {len(right)}"
    extra = _without(wrong, right)
    lost = _without(right, wrong)
    if not len(extra):
        text = f"{name} {counts}: not {_place(expected, token, int(lost[0]))}"
        return Mistake("lengths", "sees too few keys", text)
    known = [_kind(expected, token, int(slot), right, mask) for slot in extra[:1000]]
    kind = min(known, key=_ORDER.index)
    slot = int(extra[known.index(kind)])
    about = "blocks" if len(right) == len(wrong) else "lengths"
    detail = f"{name} {counts}: {_place(expected, token, slot)} too"
    if about == "blocks":
        instead = _place(expected, token, int(lost[0]))
        detail = f"{name} sees {_place(expected, token, slot)}, must see {instead}"
    return Mistake(about, kind, detail)


_OTHER_REQUEST = "sees another request's block"
_UNOWNED = "sees a block that no request has"
_STALE = "sees a stale block-table entry"
_PAST_ROW = "sees keys beyond its block-table row"
_TWICE = "sees a key twice"
_FUTURE = "sees keys of its own future"
_UNWRITTEN = "sees a key that was never written"
_CHUNK = "sees keys of another chunk"
_OUTSIDE = "sees keys before its window"
_ORDER = (
    _OTHER_REQUEST,
    _STALE,
    _UNOWNED,
    _PAST_ROW,
    _CHUNK,
    _FUTURE,
    _UNWRITTEN,
    _OUTSIDE,
    _TWICE,
)
"""Kinds of keys that must not be seen, the worst first."""


def _kind(expected: ExpectedTokens, token: int, slot: int, right: np.ndarray, mask: Mask) -> str:
    if slot == BEYOND:
        return _PAST_ROW
    if slot in right:
        return _TWICE
    position = position_of(expected, int(expected.requests[token]), slot)
    if position is None:
        block = slot // expected.block_size
        others = block_owner(expected, block) is not None
        return _OTHER_REQUEST if others else _STALE if block == STALE_PATTERNS[0] else _UNOWNED
    here = int(expected.positions[token])
    if mask.chunk and position // mask.chunk != here // mask.chunk:
        return _CHUNK
    if position < here:
        return _OUTSIDE
    end = expected.computed[expected.requests[token]] + _query_len(expected, token)
    return _FUTURE if position < end else _UNWRITTEN


def _query_len(expected: ExpectedTokens, token: int) -> int:
    request = int(expected.requests[token])
    return int(expected.starts[request + 1] - expected.starts[request])


def _place(expected: ExpectedTokens, token: int, slot: int) -> str:
    """Describe a slot as a position of the token's request or as a block."""
    if slot == BEYOND:
        return "a position beyond its block-table row"
    position = position_of(expected, int(expected.requests[token]), slot)
    if position is not None:
        return f"its key at position {position}"
    block = slot // expected.block_size
    other = block_owner(expected, block)
    if other is None:
        return "a stale block" if block == STALE_PATTERNS[0] else f"block {block} of no request"
    return f"block {block} of request {other}"


def position_of(expected: ExpectedTokens, request: int, slot: int) -> int | None:
    """Return the position of the request that is stored in the slot, None if none is."""
    blocks = expected.batch.blocks[request] if request < expected.batch.num_requests else ()
    block, place = divmod(slot, expected.block_size)
    return blocks.index(block) * expected.block_size + place if block in blocks else None


def block_owner(expected: ExpectedTokens, block: int) -> int | None:
    """Return the first request that has the block, None if none has it."""
    return next((row for row, blocks in enumerate(expected.batch.blocks) if block in blocks), None)


def _without(slots: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the multiset difference of two arrays of slots, ascending."""
    names, counts = np.unique(slots, return_counts=True)
    other_names, other_counts = np.unique(others, return_counts=True)
    taken = dict(zip(other_names.tolist(), other_counts.tolist(), strict=True))
    left = [max(0, n - taken.get(s, 0)) for s, n in zip(names.tolist(), counts, strict=True)]
    return np.repeat(names, left)


def _keys(count: int) -> str:
    return f"{count} key{'' if count == 1 else 's'}"
