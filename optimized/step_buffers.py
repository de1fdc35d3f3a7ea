"""Buffers of a `PersistentBatch`; the tensors of its batches are views of the buffers.

One packed buffer holds offsets, sequence lengths, computed tokens and block table, so that
one copy uploads all of them. Another one, on the CPU, holds the mirrors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .dispatch import on_device, staging
from .host.arrays import Array

_ALIGNED = 4
"""int32 words between possible starts of sections: 16 bytes, the widest load of a kernel."""


class Rows(NamedTuple):
    """Views of the first rows of each section of a packed buffer."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_computed: torch.Tensor
    block_table: torch.Tensor

    def lengths(self) -> tuple[Array, Array, Array]:
        """Return the first three views as arrays."""
        return self.query_start_loc.numpy(), self.seq_lens.numpy(), self.num_computed.numpy()


class Views(NamedTuple):
    """Views of the first rows of the mirrors and of the tensors, both also as arrays."""

    mirrors: Rows
    tensors: Rows
    mirror_lengths: tuple[Array, Array, Array]
    lengths: tuple[Array, Array, Array] | None
    """None on a device, where the loops write to a staging buffer."""
    block_table: Array | None


class StepBuffers:
    """Packed buffers of the tensors and of their mirrors; views are cached by number of rows."""

    def __init__(self, max_num_reqs: int, max_num_blocks: int, device: torch.device) -> None:
        self._width = max_num_blocks
        self._section = -(-(max_num_reqs + 1) // _ALIGNED) * _ALIGNED
        self._mirrors = torch.zeros(self._size(0), dtype=torch.int32)
        self._packed = torch.zeros(self._size(max_num_reqs), dtype=torch.int32, device=device)
        self.on_device = on_device(self._packed)
        self._views: dict[int, Views] = {}

    def views(self, rows: int) -> Views:
        """Return the views of the first `rows` rows."""
        if rows not in self._views:
            mirrors, tensors = self._cut(self._mirrors, rows, 0), self._cut(self._packed, rows)
            on_host = not self.on_device
            self._views[rows] = Views(
                mirrors,
                tensors,
                mirrors.lengths(),
                tensors.lengths() if on_host else None,
                tensors.block_table.numpy() if on_host else None,
            )
        return self._views[rows]

    def staged(self, rows: int) -> tuple[torch.Tensor, Rows]:
        """Return a new pinned buffer for `rows` rows, and its views.

        A new buffer each time: the next engine step can be written while the copy of this
        one is running. PyTorch does not reuse pinned memory before its copy has finished.
        """
        packed = staging(self._size(rows), torch.int32, self._packed.device)
        return packed, self._cut(packed, rows)

    def send(self, staged: torch.Tensor) -> None:
        """Copy the staged buffer to the device asynchronously."""
        self._packed[: staged.shape[0]].copy_(staged, non_blocking=True)

    def _size(self, rows: int) -> int:
        return 3 * self._section + rows * self._width

    def _cut(self, packed: torch.Tensor, rows: int, width: int | None = None) -> Rows:
        start, columns = 3 * self._section, self._width if width is None else width
        return Rows(
            packed[: rows + 1],
            packed[self._section : self._section + rows],
            packed[2 * self._section : 2 * self._section + rows],
            packed[start : start + rows * columns].view(rows, columns),
        )
