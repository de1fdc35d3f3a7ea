"""Guard words around everything a candidate allocates through torch on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

GUARD_ELEMENTS = 64
FILLS = (0x5C, 0xC3)
"""Bytes that unfilled memory holds, one for each stale pattern: as int32 far out of range."""
_GUARD_BYTE = 0xA5
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
        self._fill = fill
        self._allocated: list[tuple[torch.Tensor, int, int]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,  # noqa: ARG002
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
        return result

    def _guard(self, tensor: torch.Tensor, keep: bool) -> torch.Tensor:
        if not tensor.numel() or not tensor.is_contiguous() or tensor.dtype == torch.bool:
            return tensor
        width, size = GUARD_ELEMENTS * tensor.element_size(), tensor.nbytes
        memory = torch.empty(size + 2 * width, dtype=torch.uint8, device=tensor.device)
        memory.fill_(_GUARD_BYTE)
        inner = memory[width : width + size].view(tensor.dtype).view(tensor.shape)
        if keep:
            inner.copy_(tensor)
        else:
            memory[width : width + size] = self._fill
        self._allocated.append((memory, width, size))
        return inner

    def broken(self) -> int:
        """How many allocations had a guard word overwritten."""
        return sum(
            bool((memory[:width] != _GUARD_BYTE).any())
            or bool((memory[width + size :] != _GUARD_BYTE).any())
            for memory, width, size in self._allocated
        )
