"""Copies of states for vLLM's model runner V2, whose kernels read addresses from a context."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch


def _context(
    context_class: Any,
    num_accepted_tokens: torch.Tensor,
    block_table: torch.Tensor,
    windows: torch.Tensor,
    states: torch.Tensor,
    block_size: int,
) -> Any:
    """Return vLLM's context of one layer, with what its methods read."""
    both, window = (windows, states), windows.stride(1)
    numbers: dict[str, list[int]] = {
        "state_base_addrs": [state.data_ptr() for state in both],
        "state_block_strides": [state.stride(0) * state.element_size() for state in both],
        "state_inner_sizes": [window, states.shape[1]],
        "state_dim_row_stride": [0, 0],
        "block_table_ptrs": [block_table.data_ptr()],
    }
    small = {
        "state_elem_sizes": [state.element_size() for state in both],
        "state_conv_widths": [windows.shape[1], 0],
        "state_group_indices": [0, 0],
        "state_dim_row_count": [0, 0],
    }
    context = object.__new__(context_class)
    context.__dict__ |= {name: torch.tensor(n, dtype=torch.int64) for name, n in numbers.items()}
    context.__dict__ |= {name: torch.tensor(n, dtype=torch.int32) for name, n in small.items()}
    context.__dict__ |= {
        "block_table_stride_req": block_table.stride(0),
        "block_size": block_size,
        "num_states": 2,
        "num_accepted_tokens_out": torch.empty_like(num_accepted_tokens),
        "is_initialized": True,
    }
    return context


def preprocess_mamba_align(context_class: Any) -> Callable[..., None]:
    """Return the copies before a step, in the order of `MambaHybridModelState`."""
    kernel = sys.modules[context_class.__module__].preprocess_mamba_align_fused_kernel

    def preprocess(
        idx_mapping: torch.Tensor,
        state_idx: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        query_start_loc: torch.Tensor,
        num_accepted_tokens: torch.Tensor,
        block_table: torch.Tensor,
        conv_state: torch.Tensor,
        temporal_state: torch.Tensor,
        block_size: int,
    ) -> None:
        rows, layer = len(idx_mapping), (block_table, conv_state, temporal_state, block_size)
        columns, offsets = torch.full_like(state_idx, -1), torch.zeros_like(state_idx)
        if rows:
            kernel[(-(-rows // 256),)](
                idx_mapping,
                state_idx,
                num_computed_tokens,
                query_start_loc,
                num_accepted_tokens,
                columns,
                offsets,
                rows,
                BLOCK_SIZE=256,
                MAMBA_BLOCK_SIZE=block_size,
            )
        context = _context(context_class, num_accepted_tokens, *layer)
        context.run_fused_precopy(rows, state_idx, columns, offsets, idx_mapping)

    return preprocess


def postprocess_mamba_align(context_class: Any) -> Callable[..., None]:
    """Return the copies after a step."""

    def postprocess(
        idx_mapping: torch.Tensor,
        state_idx: torch.Tensor,
        num_computed_tokens: torch.Tensor,
        num_accepted_tokens: torch.Tensor,
        block_table: torch.Tensor,
        conv_state: torch.Tensor,
        temporal_state: torch.Tensor,
        block_size: int,
    ) -> None:
        layer = (block_table, conv_state, temporal_state, block_size)
        _context(context_class, num_accepted_tokens, *layer).run_fused_postprocess_align(
            len(idx_mapping), num_accepted_tokens, state_idx, num_computed_tokens, idx_mapping
        )

    return postprocess
