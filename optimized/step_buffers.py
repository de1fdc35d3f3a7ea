"""The memory that the batches of a `PersistentBatch` are views of.

Offsets, sequence lengths, computed tokens and block table lie in one packed buffer, so
that a device gets all of them by one copy; the mirrors in another one, on the CPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .dispatch import on_device, staging
from .host.arrays import Array

_ALIGNED = 4
"""int32 words that sections start at multiples of: 16 bytes, so that kernels load wide."""


class Rows(NamedTuple):
    """Views of a packed buffer: the first rows of each of its sections."""

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    num_computed: torch.Tensor
    block_table: torch.Tensor

    def lengths(self) -> tuple[Array, Array, Array]:
        """The first three as arrays."""
        return self.query_start_loc.numpy(), self.seq_lens.numpy(), self.num_computed.numpy()


class Views(NamedTuple):
    """The views that a number of rows needs, on both sides, and as arrays for the loops."""

    mirrors: Rows
    tensors: Rows
    mirror_lengths: tuple[Array, Array, Array]
    lengths: tuple[Array, Array, Array] | None
    """None on a device: the loops write to a staging buffer there."""
    block_table: Array | None


class StepBuffers:
    """Two packed buffers; views are made once for each number of rows."""

    def __init__(self, max_num_reqs: int, max_num_blocks: int, device: torch.device) -> None:
        self._width = max_num_blocks
        self._section = -(-(max_num_reqs + 1) // _ALIGNED) * _ALIGNED
        self._mirrors = torch.zeros(self._size(0), dtype=torch.int32)
        self._packed = torch.zeros(self._size(max_num_reqs), dtype=torch.int32, device=device)
        self.on_device = on_device(self._packed)
        self._views: dict[int, Views] = {}

    def views(self, rows: int) -> Views:
        """Those of the first `rows` rows."""
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
        """A pinned buffer of its own for `rows` rows, and its views.

        PyTorch gives its memory to nobody else before a copy that was started is done:
        the next step can be written while this one is still under way.
        """
        packed = staging(self._size(rows), torch.int32, self._packed.device)
        return packed, self._cut(packed, rows)

    def send(self, staged: torch.Tensor) -> None:
        """Start the one copy to the device."""
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
