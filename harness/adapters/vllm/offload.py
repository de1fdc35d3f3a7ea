"""Copies to host memory for vLLM, whose handler makes lists of addresses for a copy engine."""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from attnproof.harness.adapters.quiet import quietly

_NOTHING = SimpleNamespace(
    wait_stream=lambda *_: None, wait_event=lambda *_: None, record=lambda *_: None
)
"""A stream or event of a machine without a device."""
_CPU = SimpleNamespace(
    is_xpu=lambda: False,
    is_rocm=lambda: False,
    Stream=lambda: _NOTHING,
    current_stream=lambda: _NOTHING,
    stream=lambda _: nullcontext(),
)
"""A platform without a device, with the functions that the handler calls."""


def _copy(source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, **_: Any) -> None:
    """Copy bytes between addresses, as vLLM's compiled operator does."""
    for a, b, size in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(b, a, size)


class OffloadedBlocks:
    """The handler of one direction, made without its checks for a device."""

    def __init__(self, handler_class: Any) -> None:
        self._class = handler_class
        self._module: Any = sys.modules[handler_class.__module__]
        self._specs = quietly("vllm.v1.kv_offload.base")

    def __call__(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        block_ids: list[int],
        chunk_ids: list[int],
        group_sizes: list[int],
        block_indices: list[int],
        blocks_per_chunk: int,
        page_bytes: int,
        to_host: bool,
    ) -> None:
        """Let vLLM's handler list the copies, and make them."""
        handler = object.__new__(self._class)
        reference = SimpleNamespace(tensor_idx=0, page_size_bytes=page_bytes)
        handler.__dict__ |= {
            "src_tensors": [source],
            "dst_tensors": [target],
            "gpu_to_cpu": to_host,
            "layer_refs_per_group": [[reference] for _ in group_sizes],
            "src_blocks_per_chunk": 1 if to_host else blocks_per_chunk,
            "dst_blocks_per_chunk": blocks_per_chunk if to_host else 1,
            "_swap_blocks_batch": _copy,
            "_canonical_copy_plans": None,
            "_fill_group_ops": handler._fill_direct_ops,
            "_transfer_events": {},
            "_transfers": deque(),
            "_stream_pool": [],
            "_event_pool": [_NOTHING, _NOTHING],
            "_buffer_pool": [],
        }
        self._module.current_platform = _CPU
        blocks = self._specs.GPULoadStoreSpec(block_ids, group_sizes, block_indices)
        chunks = object.__new__(self._specs.BlockIDsLoadStoreSpec)
        chunks.block_ids = np.array(chunk_ids, dtype=np.int64)
        handler.transfer_async(0, *((blocks, chunks) if to_host else (chunks, blocks)))
