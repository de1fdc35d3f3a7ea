"""Chunks of latent attention's context by vLLM's own planners."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def indexer_chunks(builder: Any) -> Callable[..., Any]:
    """Return the chunks of an indexer, a static method of its builder."""
    chunks: Callable[..., Any] = builder._split_indexer_prefill_chunks
    return chunks


def context_chunks(build: Callable[..., Any]) -> Callable[..., Any]:
    """Return the chunks of a context, of which the builder makes tensors on the CPU."""

    def built(
        context_lens_cpu: torch.Tensor,
        prefill_query_start_loc_cpu: torch.Tensor,
        chunked_prefill_workspace_size: int,
        block_size: int,
        align_chunk_to_block: bool,
        dcp_world_size: int,
        dcp_local_block_size: int,
    ) -> Any:
        return build(
            context_lens_cpu=context_lens_cpu,
            prefill_query_start_loc_cpu=prefill_query_start_loc_cpu,
            chunked_prefill_workspace=torch.empty(0),
            chunked_prefill_workspace_size=chunked_prefill_workspace_size,
            block_size=block_size,
            align_chunk_to_block=align_chunk_to_block,
            device=torch.device("cpu"),
            dcp_world_size=dcp_world_size,
            dcp_local_block_size=dcp_local_block_size,
            dcp_virtual_block_size=dcp_local_block_size * dcp_world_size,
        )

    return built
