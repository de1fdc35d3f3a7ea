"""Several int32 arrays that reach a device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from .host.arrays import Array

_ALIGNMENT: Final = 32
"""Each array starts at a multiple of so many words, 128 bytes: as if allocated alone."""


class Packed:
    """Uninitialised `arrays` of the given lengths in one host buffer."""

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
        """The arrays as tensors on the device; from pinned memory the host does not wait."""
        sent = self._staged.to(device, non_blocking=True)
        return [sent[start:end] for start, end in self._spans]
