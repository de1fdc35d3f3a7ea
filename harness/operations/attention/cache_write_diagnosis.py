"""What became of the keys and values of a cache write, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.layers.attention import as_words
from attnproof.harness.cases.layers.cache_write import CacheWrite
from attnproof.harness.cases.memory.far_memory import FAR_ELEMENTS
from attnproof.harness.model.operation import Call

_HALVES = ("key_cache", "value_cache")


def diagnose_cache_write(call: Call, field: str, expected: Any, got: Any) -> str:
    """From which slots are wrong and whose content they have to the likely mistake."""
    if field not in _HALVES or not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    seen = _Seen(call, _HALVES.index(field), expected, got)
    for look in (_wrapped, _stray, _not_written, _of_another, _encoded):
        text = look(seen)
        if text:
            return text
    return "wrong elements of a token"


class _Seen:
    """One half of the cache after the call, slot by slot."""

    def __init__(self, call: Call, half: int, expected: torch.Tensor, got: torch.Tensor) -> None:
        self.made: CacheWrite = call.facts["write"]
        self.half = half
        rows = expected.shape[0] * expected.shape[1]
        self.right = expected.cpu().numpy().reshape(rows, -1)
        self.got = got.cpu().numpy().reshape(rows, -1)
        self.before = self.made.before[half].reshape(rows, -1)
        self.tokens = np.flatnonzero(self.made.slots >= 0)
        """Tokens that are written; `slots` are theirs."""
        self.slots = self.made.slots[self.tokens]
        bad = (self.got != self.right).any(axis=1)
        self.stray = np.setdiff1d(np.flatnonzero(bad), self.slots)
        """Slots of no token that changed."""
        self.wrong = np.flatnonzero(bad[self.slots])
        """Which of the tokens have the wrong content."""

    def unwritten(self) -> np.ndarray:
        """For each wrong token, whether its slot is as it was."""
        slots = self.slots[self.wrong]
        unwritten: np.ndarray = np.all(self.got[slots] == self.before[slots], axis=1)
        return unwritten

    def stored(self, half: int, scales: tuple[float, float] | None = None) -> np.ndarray:
        """Rows of all tokens' keys or values as the cache would hold them."""
        given = self.made.given[half]
        if self.made.quantised:
            scale = (scales or self.made.scales)[half]
            floats = torch.from_numpy(np.ascontiguousarray(given)).view(self.made.dtype).float()
            given = as_words(floats.numpy(), torch.float8_e4m3fn, scale)
            given = np.where(given & 0x7F == 0x7F, 0x7F, given).astype(np.uint8)
        return np.reshape(given, (len(given), -1))


def _wrapped(seen: _Seen) -> str:
    """Only tokens whose elements lie beyond 2**31 are not where they belong."""
    offsets = seen.made.element_offsets()
    last = seen.got.shape[1] - 1
    far = offsets[seen.slots] + last >= FAR_ELEMENTS
    if not far.any() or not len(seen.wrong):
        return ""
    return "32-bit overflow" if set(seen.wrong) <= set(np.flatnonzero(far)) else ""


def _stray(seen: _Seen) -> str:
    if not len(seen.stray):
        return ""
    without = len(seen.made.slots) - len(seen.tokens)
    if without and set(seen.stray) == {len(seen.got) - 1}:
        return "slot -1 taken for the last slot of the cache"
    if without and 0 in seen.stray and not len(seen.wrong):
        return "a token without a slot written all the same"
    if len(seen.wrong) and seen.unwritten().any():
        return "written to another slot"
    return "a slot changed that no token has"


def _not_written(seen: _Seen) -> str:
    if not seen.unwritten().all():
        return ""
    if len(seen.wrong) == len(seen.slots) > 1:
        return f"{('keys', 'values')[seen.half]} not written"
    return "token not written"


def _of_another(seen: _Seen) -> str:
    """Rows that are another token's, or the other half's, or this token's in disorder."""
    tokens, got = seen.tokens[seen.wrong], seen.got[seen.slots[seen.wrong]]
    mine, other = seen.stored(seen.half), seen.stored(1 - seen.half)
    if (got == other[tokens]).all():
        return "keys and values exchanged"
    if all((row == mine).all(axis=1).any() for row in got):
        return "another token's content"
    if (np.sort(got, axis=1) == np.sort(mine[tokens], axis=1)).all():
        return "elements of a token in another order"
    return ""


def _encoded(seen: _Seen) -> str:
    """What fp8 codes say about how they were made."""
    made = seen.made
    if not made.quantised:
        return ""
    tokens, got = seen.tokens[seen.wrong], seen.got[seen.slots[seen.wrong]]
    k_scale, v_scale = made.scales
    for scales, text in (
        ((1.0, 1.0), "not divided by the scale"),
        ((1 / k_scale, 1 / v_scale), "multiplied by the scale"),
        ((v_scale, k_scale), "the other half's scale"),
    ):
        if (got == seen.stored(seen.half, scales)[tokens]).all():
            return text
    right = seen.right[seen.slots[seen.wrong]]
    differ = got != right
    codes, wanted = got[differ].astype(int) & 0x7F, right[differ].astype(int) & 0x7F
    if (wanted == 0x7F).all():
        return "NaN lost"
    if (wanted == 0x7E).all() and (codes == 0x7F).all():
        return "not saturated"
    if (np.abs(codes - wanted) == 1).all():
        return "not rounded to the nearest"
    return "wrong fp8 codes"
