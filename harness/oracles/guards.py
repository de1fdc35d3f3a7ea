"""Guard words around everything a candidate allocates through torch on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attnproof.harness.oracles.late_copies import is_unwaited_copy

FILLS = (0x5C, 0xC3)
"""Bytes that unfilled memory holds, one for each stale pattern: as int32 far out of range."""
_GUARD_BYTE = 0xA5
_GUARD_BYTES = 512
_ALIGNMENT = 64
_POOL_BYTES = 1 << 16
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


class GuardedAllocations(TorchFunctionMode):
    """While active, new tensors lie between guard words and unfilled ones hold garbage.

    A kernel that writes beyond its output changes a guard word; one that leaves part
    of its output unwritten returns garbage and not the zeros it found by luck.
    """

    def __init__(self, fill: int = FILLS[0]) -> None:
        super().__init__()
        self.unwaited_copies = False
        """Whether anything was copied that asked not to be waited for, perhaps to the host."""
        self._fill = fill
        self._pools: list[_Pool] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function; move what it allocated between guard words."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func in _UNFILLED and not kwargs.get("pin_memory"):
            return self._guard(result, keep=False)
        if func in _FILLED:
            return self._guard(result, keep=True)
        self.unwaited_copies = self.unwaited_copies or is_unwaited_copy(func, args, kwargs)
        return result

    def _guard(self, tensor: torch.Tensor, keep: bool) -> torch.Tensor:
        if not tensor.numel() or not tensor.is_contiguous() or tensor.dtype == torch.bool:
            return tensor
        inner = self._room(tensor.nbytes, tensor.device).take(tensor.nbytes)
        if not keep:
            inner.fill_(self._fill)
        inner = inner.view(tensor.dtype).view(tensor.shape)
        return inner.copy_(tensor) if keep else inner

    def _room(self, size: int, device: torch.device) -> _Pool:
        for pool in self._pools:
            if pool.memory.device == device and pool.fits(size):
                return pool
        self._pools.insert(0, _Pool(max(_POOL_BYTES, size + 2 * _GUARD_BYTES), device))
        return self._pools[0]

    def broken(self) -> int:
        """How many allocations have a changed guard word before them, or behind the last."""
        return sum(pool.broken() for pool in self._pools)


class _Pool:
    """One block of guard bytes out of which allocations are cut.

    A large allocation has a block of its own, of which only the two ends are guards:
    to fill and compare all of it would cost more than the call that is judged.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._large = size > _POOL_BYTES
        for guard in self._ends() if self._large else [self.memory]:
            guard.fill_(_GUARD_BYTE)
        self._end = _GUARD_BYTES
        self._taken: list[tuple[int, int]] = []

    def fits(self, size: int) -> bool:
        """Whether there is room for `size` bytes and the guard behind them."""
        return self._end + size + _GUARD_BYTES <= len(self.memory)

    def take(self, size: int) -> torch.Tensor:
        """The next `size` bytes, guard bytes on both sides of them."""
        start = self._end
        self._taken.append((start, start + size))
        self._end = -(-(start + size) // _ALIGNMENT) * _ALIGNMENT + _GUARD_BYTES
        return self.memory[start : start + size]

    def broken(self) -> int:
        """Guards that are not as they were."""
        if self._large:
            return sum(bool((guard != _GUARD_BYTE).any()) for guard in self._ends())
        changed = self.memory[: self._end] != _GUARD_BYTE
        for start, stop in self._taken:
            changed[start:stop] = False
        if not changed.any():
            return 0
        bounds = [0, *(stop for _, stop in self._taken), self._end]
        return sum(bool(changed[a:b].any()) for a, b in pairwise(bounds))

    def _ends(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The guards of a block that holds one allocation."""
        return self.memory[:_GUARD_BYTES], self.memory[-_GUARD_BYTES:]
