"""Copy several int32 arrays to a device at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from .host.arrays import Array

_ALIGNMENT: Final = 32
"""int32 words between possible starts of arrays: 128 bytes, as in separate allocations."""


class Packed:
    """Uninitialised `arrays` of the given lengths, in elements, in one host buffer."""

    def __init__(self, lengths: Sequence[int], *, pinned: bool) -> None:
        self._spans: list[tuple[int, int]] = []
        end = 0
        for length in lengths:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + length
            self._spans.append((start, end))
        self._staged = torch.empty(end, dtype=torch.int32, pin_memory=pinned)
        words = self._staged.numpy()
        self.arrays: list[Array] = [words[start:end] for start, end in self._spans]

    def on(self, device: torch.device | str) -> list[torch.Tensor]:
        """Return the arrays as tensors on the device; asynchronous from pinned memory."""
        sent = self._staged.to(device, non_blocking=True)
        return [sent[start:end] for start, end in self._spans]
