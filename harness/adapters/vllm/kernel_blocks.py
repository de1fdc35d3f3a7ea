"""`map_to_kernel_block_table` for vLLM, which has it as a method of an attention group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.model.call import Thunk


class KernelBlocks:
    """The method of an attention group that holds the caller's buffer."""

    __name__ = "map_to_kernel_block_table"

    def __init__(self, group_class: Callable[..., Any]) -> None:
        self._class = group_class

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return the block table in kernel blocks."""
        result: torch.Tensor = self.bind(*args, **kwargs)()
        return result

    def bind(
        self,
        block_table: torch.Tensor,
        block_size: int,
        kernel_block_size: int,
        stride: int | None = None,
        out: torch.Tensor | None = None,
    ) -> Thunk:
        """Return the method with its table; a group of a call without `out` gets a new buffer."""
        group = self._class(None, [], SimpleNamespace(block_size=block_size), 0)
        parts = block_size // kernel_block_size
        # A group has no kernel block size of its own if every block is one kernel block.
        if kernel_block_size != block_size or stride not in (None, 1) or out is not None:
            group.kernel_block_size = kernel_block_size
            group.kernel_block_stride = stride or 0
            if out is None:
                rows, columns = block_table.shape
                out = block_table.new_zeros((rows, columns * parts))
            group.kernel_block_table = out.unsqueeze(0)
            group.kernel_block_offsets = torch.arange(
                parts, dtype=torch.int32, device=block_table.device
            )
        return partial(group.map_to_kernel_block_table, block_table)
