"""What a token sees wrongly, in words: how many keys, of whom, of which position."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.consumer.visible_keys import BEYOND, ExpectedTokens, Mask, VisibleKeys


class Words(NamedTuple):
    """A mistake: in lengths or in blocks, its kind, and where it shows."""

    about: str
    """"lengths" or "blocks"."""
    kind: str
    detail: str


def who(expected: ExpectedTokens, token: int) -> str:
    """The token by its request: "token 5 of request 1"."""
    if token >= len(expected.requests):
        return f"padded token {token}"
    return f"token {expected.indices[token]} of request {expected.requests[token]}"


def what_is_wrong(
    expected: ExpectedTokens,
    must: VisibleKeys,
    seen: VisibleKeys,
    token: int,
    index: int,
    mask: Mask,
) -> Words:
    """What token `token` of the batch, the `index`-th of both sights, sees wrongly."""
    right, wrong = must.slots(index), seen.slots(index)
    counts = f"sees {_keys(len(wrong))}, must see {len(right)}"
    extra = _without(wrong, right)
    lost = _without(right, wrong)
    if not len(extra):
        text = f"{counts}: not {_place(expected, token, int(lost[0]))}"
        return Words("lengths", "sees too few keys", f"{who(expected, token)} {text}")
    known = [_kind(expected, token, int(slot), right, mask) for slot in extra[:1000]]
    kind = min(known, key=_ORDER.index)
    slot = int(extra[known.index(kind)])
    about = "blocks" if len(right) == len(wrong) else "lengths"
    detail = f"{who(expected, token)} {counts}: {_place(expected, token, slot)} too"
    if about == "blocks":
        instead = _place(expected, token, int(lost[0]))
        detail = f"{who(expected, token)} sees {_place(expected, token, slot)}, must see {instead}"
    return Words(about, kind, detail)


_OTHERS = "sees another request's block"
_NOBODYS = "sees a block that no request has"
_STALE = "sees a stale block-table entry"
_BEHIND = "sees keys behind its block-table row"
_TWICE = "sees a key twice"
_FUTURE = "sees keys of its own future"
_UNWRITTEN = "sees a key that nobody has written"
_CHUNK = "sees keys of another chunk"
_OUTSIDE = "sees keys before its window"
_ORDER = (_OTHERS, _STALE, _NOBODYS, _BEHIND, _CHUNK, _FUTURE, _UNWRITTEN, _OUTSIDE, _TWICE)
"""The kinds of keys that must not be seen, the worst first."""


def _kind(expected: ExpectedTokens, token: int, slot: int, right: np.ndarray, mask: Mask) -> str:
    if slot == BEYOND:
        return _BEHIND
    if slot in right:
        return _TWICE
    position = position_of(expected, int(expected.requests[token]), slot)
    if position is None:
        block = slot // expected.block_size
        others = owner(expected, block) is not None
        return _OTHERS if others else _STALE if block == STALE_PATTERNS[0] else _NOBODYS
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
    """A slot as the token's own position, as another request's block or by its number."""
    if slot == BEYOND:
        return "a position behind its block-table row"
    position = position_of(expected, int(expected.requests[token]), slot)
    if position is not None:
        return f"its key at position {position}"
    block = slot // expected.block_size
    other = owner(expected, block)
    if other is None:
        return "a stale block" if block == STALE_PATTERNS[0] else f"block {block} of nobody"
    return f"block {block} of request {other}"


def position_of(expected: ExpectedTokens, request: int, slot: int) -> int | None:
    """The position of the request that lies in the slot, None if none does."""
    blocks = expected.batch.blocks[request] if request < expected.batch.num_requests else ()
    block, place = divmod(slot, expected.block_size)
    return blocks.index(block) * expected.block_size + place if block in blocks else None


def owner(expected: ExpectedTokens, block: int) -> int | None:
    """The request that has the block, the first if several share it."""
    return next((row for row, blocks in enumerate(expected.batch.blocks) if block in blocks), None)


def _without(slots: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The slots less the others, each as often as it occurs more."""
    names, counts = np.unique(slots, return_counts=True)
    other_names, other_counts = np.unique(others, return_counts=True)
    taken = dict(zip(other_names.tolist(), other_counts.tolist(), strict=True))
    left = [max(0, n - taken.get(s, 0)) for s, n in zip(names.tolist(), counts, strict=True)]
    return np.repeat(names, left)


def _keys(count: int) -> str:
    return f"{count} key{'' if count == 1 else 's'}"
