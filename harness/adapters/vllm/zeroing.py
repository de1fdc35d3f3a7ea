"""Zeroing of new blocks for vLLM, whose object keeps addresses of the caches of all layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.adapters.quiet import quietly


class BlockZeroer:
    """The object that vLLM makes of the caches of a model, for one call."""

    def __init__(self, zeroer_class: Any) -> None:
        self._class = zeroer_class
        self._specs = quietly("vllm.v1.kv_cache_interface")

    def __call__(
        self,
        storage: torch.Tensor,
        offsets: list[int],
        shapes: list[list[int]],
        strides: list[list[int]],
        is_state: list[bool],
        num_blocks: int,
        block_ids: list[int],
    ) -> None:
        """Bind a view for each layer, and let vLLM zero the blocks."""
        groups, layers = [], {}
        for i, (offset, shape, steps) in enumerate(zip(offsets, shapes, strides, strict=True)):
            name = f"layer.{i}"
            kind = self._specs.MambaSpec if is_state[i] else self._specs.FullAttentionSpec
            spec = object.__new__(kind)
            object.__setattr__(spec, "block_size", 16)
            first = storage.storage_offset() + offset
            layers[name] = SimpleNamespace(kv_cache=storage.as_strided(shape, steps, first))
            groups.append(
                SimpleNamespace(
                    kv_cache_spec=spec,
                    kv_cache_group_id=0,
                    layer_names=[name],
                    kernel_block_stride=0,
                )
            )
        self._class(storage.device, groups, [16], layers, num_blocks).zero_block_ids(block_ids)
