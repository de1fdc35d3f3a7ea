"""Guard words around what a candidate allocates through torch, and poison in all new memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from attnproof.harness.oracles.late_copies import is_unwaited_copy

FILLS = (0x5C, 0xC3)
"""Poison bytes of uninitialised memory, one for each poison pattern; out of range as int32."""
_RISING = (torch.arange(1 << 14) % 64).to(torch.uint8)
"""Lowest bytes of the first words of uninitialised memory, of four bytes each."""
_GUARD_BYTE = 0xA5
_GUARD_BYTES = 512
"""Length of a guard."""
_ALIGNMENT = 64
_POOL_BYTES = 1 << 16
"""Size of a pool; a larger allocation gets a pool of its own."""
_UNFILLED = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
}
_FILLED = {
    torch.zeros,
    torch.zeros_like,
    torch.ones,
    torch.ones_like,
    torch.full,
    torch.full_like,
    torch.Tensor.new_zeros,
    torch.Tensor.new_ones,
    torch.Tensor.new_full,
}
_COPIES = {torch.Tensor.copy_, torch.Tensor.to}
_WATCHED = _UNFILLED | _FILLED | _COPIES


def are_poison(values: np.ndarray) -> np.ndarray:
    """Return which of the integers are those of uninitialised memory, as an array of bool."""
    poisoned = np.zeros(values.shape, dtype=bool)
    for size in (4, 8):
        lowest = int.from_bytes(b"\xff\0\0\0" * (size // 4), "little")
        for fill in FILLS:
            poison = int.from_bytes(bytes([fill]) * size, "little", signed=True)
            poisoned |= values.astype(np.int64) | lowest == poison | lowest
    return poisoned


_M_PERTURB = -6
"""Option of glibc's `mallopt`: a byte whose complement fills new memory."""
_mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda _option, _value: 0)


@contextmanager
def new_memory_filled(fill: int) -> Iterator[None]:
    """Let memory from `malloc` hold the byte `fill`, that of `numpy.empty` and of extensions too.

    Without glibc it holds what it held before.
    """
    _mallopt(_M_PERTURB, fill ^ 0xFF)
    try:
        yield
    finally:
        _mallopt(_M_PERTURB, 0)


class GuardedAllocations(TorchFunctionMode):
    """While active, new tensors have guard words around them, and uninitialised ones hold poison.

    A kernel that writes beyond its output changes a guard word. A kernel that leaves part of
    its output unwritten returns poison, not the zeros that new memory often holds.
    """

    def __init__(self, fill: int = FILLS[0]) -> None:
        super().__init__()
        self.unwaited_copies = False
        """True after a non-blocking copy, perhaps to the host."""
        self._fill = fill
        self._pools: list[_Pool] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function; move its allocation between guard words."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func not in _WATCHED:  # nearly every call
            return result
        if func in _UNFILLED and not kwargs.get("pin_memory"):
            return self._guard(result, keep=False)
        if func in _FILLED:
            return self._guard(result, keep=True)
        self.unwaited_copies = self.unwaited_copies or is_unwaited_copy(func, args, kwargs)
        return result

    def _guard(self, tensor: torch.Tensor, keep: bool) -> torch.Tensor:
        if not tensor.numel() or not tensor.is_contiguous() or tensor.dtype == torch.bool:
            return tensor
        inner = self._pool(tensor.nbytes, tensor.device).take(tensor.nbytes)
        if not keep:
            inner.fill_(self._fill)
            lowest = inner[: 4 * len(_RISING) : 4]
            if tensor.is_cpu:  # a pair of equal numbers would be an empty range
                lowest.copy_(_RISING[: len(lowest)])
        inner = inner.view(tensor.dtype).view(tensor.shape)
        return inner.copy_(tensor) if keep else inner

    def _pool(self, size: int, device: torch.device) -> _Pool:
        for pool in self._pools:
            if pool.memory.device == device and pool.fits(size):
                return pool
        self._pools.insert(0, _Pool(max(_POOL_BYTES, size + 2 * _GUARD_BYTES), device))
        return self._pools[0]

    def changed(self) -> int:
        """Return the number of changed guards."""
        return sum(pool.changed() for pool in self._pools)


class _Pool:
    """One block of guard bytes out of which allocations are cut.

    A large allocation has a pool of its own, with guards only at its two ends.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        # Filling and comparing all of a large pool would cost more than the judged call.
        self._large = size > _POOL_BYTES
        for guard in self._ends() if self._large else [self.memory]:
            guard.fill_(_GUARD_BYTE)
        self._end = _GUARD_BYTES
        self._taken: list[tuple[int, int]] = []

    def fits(self, size: int) -> bool:
        """True if there is room for `size` bytes and the guard behind them."""
        return self._end + size + _GUARD_BYTES <= len(self.memory)

    def take(self, size: int) -> torch.Tensor:
        """Return the next `size` bytes, which have guards on both sides."""
        start = self._end
        self._taken.append((start, start + size))
        self._end = -(-(start + size) // _ALIGNMENT) * _ALIGNMENT + _GUARD_BYTES
        return self.memory[start : start + size]

    def changed(self) -> int:
        """Return the number of changed guards."""
        if self._large:
            return sum(bool((guard != _GUARD_BYTE).any()) for guard in self._ends())
        wrong = self.memory[: self._end] != _GUARD_BYTE
        for start, stop in self._taken:
            wrong[start:stop] = False
        if not wrong.any():
            return 0
        bounds = [0, *(stop for _, stop in self._taken), self._end]
        return sum(bool(wrong[a:b].any()) for a, b in pairwise(bounds))

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the two guards of a pool that holds one allocation."""
        return self.memory[:_GUARD_BYTES], self.memory[-_GUARD_BYTES:]
