"""Memory that a candidate's process and the judging process share, for the bytes of tensors."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch

_SIZES = (1 << 30, 1 << 28, 1 << 24)
"""Sizes to try, in bytes: a limit on address space may forbid the larger ones."""
_ALIGNMENT = 64
_MAP_NORESERVE = 0x4000
"""Flag of Linux, missing from the mmap module of older Python versions."""


class SharedMemory:
    """Anonymous memory, inherited by forked processes; a page is allocated when it is written."""

    def __init__(self) -> None:
        """Reserve the addresses (MemoryError)."""
        self._map = _reserved()
        self._view = (ctypes.c_char * len(self._map)).from_buffer(self._map)
        self._start = ctypes.addressof(self._view)
        self._used = 0

    def clear(self, used: int = 0) -> None:
        """Forget what was put in behind the first `used` bytes."""
        self._used = used

    def put(self, address: int, size: int) -> int | None:
        """Copy bytes from an address; return their offset, None if there is no room for them.

        The copy is aligned as the original is.
        """
        misalignment = (address - self._start - self._used) % _ALIGNMENT
        offset = self._used + misalignment
        if offset + size > len(self._map):
            return None
        ctypes.memmove(self._start + offset, address, size)
        self._used = offset + size
        return offset

    def copy(self, size: int) -> torch.Tensor:
        """Return a copy of the first `size` bytes, (size,) uint8, aligned as the memory is.

        Raises ValueError if the memory is not that large.
        """
        if not 0 <= size <= len(self._map):
            raise ValueError(f"{size} bytes of a shared memory of {len(self._map)}")
        buffer = torch.empty(size + _ALIGNMENT, dtype=torch.uint8)
        start = -(buffer.data_ptr() - self._start) % _ALIGNMENT
        copied = buffer[start : start + size]
        if size:
            ctypes.memmove(copied.data_ptr(), self._start, size)
        return copied

    @property
    def used(self) -> int:
        """Bytes that hold data."""
        return self._used


def _reserved() -> Any:
    for size in _SIZES:
        try:
            return mmap.mmap(-1, size, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except (OSError, MemoryError):
            continue
    raise MemoryError("no address space for the memory shared with a candidate's process")
