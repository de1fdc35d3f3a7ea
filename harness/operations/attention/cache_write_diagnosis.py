"""Diagnosis of a cache write: the likely mistake, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.layers.attention import as_words
from attnproof.harness.cases.layers.cache_write import CacheWrite
from attnproof.harness.cases.memory.far_memory import FAR_ELEMENTS
from attnproof.harness.model.call import Call
from attnproof.harness.model.place import Place

_HALVES = ("key_cache", "value_cache")


def diagnose_cache_write(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Infer the likely mistake from the wrong slots and their content."""
    comparable = isinstance(got, torch.Tensor) and got.shape == expected.shape
    if place.field not in _HALVES or not comparable:
        return ""
    written = _Written(call, _HALVES.index(place.field), expected, got)
    for rule in (_wrapped, _stray, _not_written, _of_another, _encoded):
        text = rule(written)
        if text:
            return text
    return "wrong elements of a token"


class _Written:
    """One half of the cache after the call, slot by slot."""

    def __init__(self, call: Call, half: int, expected: torch.Tensor, got: torch.Tensor) -> None:
        self.write: CacheWrite = call.facts.write
        self.half = half
        rows = expected.shape[0] * expected.shape[1]
        self.right = expected.cpu().numpy().reshape(rows, -1)
        self.got = got.cpu().numpy().reshape(rows, -1)
        self.before = self.write.before[half].reshape(rows, -1)
        self.tokens = np.flatnonzero(self.write.slots >= 0)
        """Indices of the tokens that have a slot; `slots` holds these slots."""
        self.slots = self.write.slots[self.tokens]
        bad = (self.got != self.right).any(axis=1)
        self.stray = np.setdiff1d(np.flatnonzero(bad), self.slots)
        """Slots of no token with wrong content."""
        self.wrong = np.flatnonzero(bad[self.slots])
        """Indices into `tokens` of the tokens with wrong content."""

    def unwritten(self) -> np.ndarray:
        """Return a mask of the wrong tokens whose slot is unchanged."""
        slots = self.slots[self.wrong]
        unwritten: np.ndarray = np.all(self.got[slots] == self.before[slots], axis=1)
        return unwritten

    def stored(self, half: int, scales: tuple[float, float] | None = None) -> np.ndarray:
        """Return all tokens' keys or values as the cache must hold them, one row a token."""
        source = self.write.source[half]
        if self.write.quantised:
            scale = (scales or self.write.scales)[half]
            floats = torch.from_numpy(np.ascontiguousarray(source)).view(self.write.dtype).float()
            source = as_words(floats.numpy(), torch.float8_e4m3fn, scale)
            source = np.where(source & 0x7F == 0x7F, 0x7F, source).astype(np.uint8)
        return np.reshape(source, (len(source), -1))


def _wrapped(written: _Written) -> str:
    """Detect that the tokens with elements beyond 2**31, and no others, are not written."""
    last = written.got.shape[1] - 1
    beyond = np.flatnonzero(written.write.element_offsets()[written.slots] + last >= FAR_ELEMENTS)
    if not len(beyond) or not np.array_equal(written.wrong, beyond):
        return ""
    return "32-bit overflow" if written.unwritten().all() else ""


def _stray(written: _Written) -> str:
    if not len(written.stray):
        return ""
    without = len(written.write.slots) - len(written.tokens)
    if without and set(written.stray) == {len(written.got) - 1}:
        return "slot -1 taken for the last slot of the cache"
    if without and 0 in written.stray and not len(written.wrong):
        return "a token without a slot written all the same"
    if len(written.wrong) and written.unwritten().any():
        return "written to another slot"
    return "a slot changed that no token has"


def _not_written(written: _Written) -> str:
    if not written.unwritten().all():
        return ""
    if len(written.wrong) == len(written.slots) > 1:
        return f"{('keys', 'values')[written.half]} not written"
    return "token not written"


def _of_another(written: _Written) -> str:
    """Detect rows of another token, of the other half, or of this token in another order."""
    tokens, got = written.tokens[written.wrong], written.got[written.slots[written.wrong]]
    mine, other = written.stored(written.half), written.stored(1 - written.half)
    if (got == other[tokens]).all():
        return "keys and values exchanged"
    if all((row == mine).all(axis=1).any() for row in got):
        return "another token's content"
    if (np.sort(got, axis=1) == np.sort(mine[tokens], axis=1)).all():
        return "elements of a token in another order"
    return ""


def _encoded(written: _Written) -> str:
    """Detect a wrong conversion to fp8 by its codes."""
    write = written.write
    if not write.quantised:
        return ""
    tokens, got = written.tokens[written.wrong], written.got[written.slots[written.wrong]]
    k_scale, v_scale = write.scales
    for scales, text in (
        ((1.0, 1.0), "not divided by the scale"),
        ((1 / k_scale, 1 / v_scale), "multiplied by the scale"),
        ((v_scale, k_scale), "the other half's scale"),
    ):
        if (got == written.stored(written.half, scales)[tokens]).all():
            return text
    right = written.right[written.slots[written.wrong]]
    differ = got != right
    codes, wanted = got[differ].astype(int) & 0x7F, right[differ].astype(int) & 0x7F
    if (wanted == 0x7F).all():
        return "NaN lost"
    if (wanted == 0x7E).all() and (codes == 0x7F).all():
        return "not saturated"
    if (np.abs(codes - wanted) == 1).all():
        return "not rounded to the nearest"
    return "wrong fp8 codes"
