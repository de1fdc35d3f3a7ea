"""FlashInfer's attention under our names: planned before the clock, as once a step.

FlashInfer compiles a kernel for each head size, dtype, window and soft cap when it is first
planned, which takes minutes: the adapter takes what it is measured on, and refuses the rest.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch

from attnproof.harness.adapters.single_engines import Bound
from attnproof.harness.model.call import Thunk

_HEAD_SIZES = (64, 128)
_WORKSPACE_BYTES = 256 << 20


@cache
def _workspace(device: torch.device) -> torch.Tensor:
    """Return the memory of partial results, which calls of a stream use one after the other."""
    return torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)


def _pages(
    seq_lens: torch.Tensor, block_table: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return offsets (R + 1,) on the host, pages, and lengths of the last pages (R,) on the host.

    All are int32, the pages on the device of `block_table`.
    """
    lengths = seq_lens.cpu()
    counts = (lengths + size - 1) // size
    starts = torch.zeros(len(counts) + 1, dtype=torch.int32)
    starts[1:] = counts.cumsum(0)
    columns = torch.arange(block_table.shape[1], device=block_table.device)
    live = columns < counts.to(block_table.device)[:, None]
    return starts, block_table[live].int(), ((lengths - 1) % size + 1).int()


def _require(held: bool, what: str) -> None:
    if not held:
        raise NotImplementedError(f"the adapter of FlashInfer takes {what} only")


def _bind(
    flashinfer: Any,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    scale: float,
    *,
    out: torch.Tensor,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    **_bounds_and_scales: Any,
) -> Thunk:
    """Return the `run` of a planned wrapper; without `query_start_loc` that of decodes."""
    size, kv_heads, head_size = key_cache.shape[1:]
    _require(head_size in _HEAD_SIZES, f"heads of {_HEAD_SIZES} elements")
    _require(key_cache.dtype == query.dtype == out.dtype, "one dtype")
    _require(not sliding_window and not logits_soft_cap, "no window and no soft cap")
    _require(key_cache.stride() == value_cache.stride(), "one layout of both caches")
    starts = query_start_loc.int().cpu() if query_start_loc is not None else None
    queries = torch.ones_like(seq_lens) if starts is None else starts.diff()
    _require(bool(len(seq_lens)) and bool((queries.cpu() > 0).all()), "requests with queries")
    _require(bool((seq_lens.cpu() >= queries.cpu()).all()), "requests with as many keys as queries")
    pages = _pages(seq_lens, block_table, size)
    shape = (query.shape[1], kv_heads, head_size, size)
    dtypes = {"q_data_type": query.dtype, "kv_data_type": query.dtype, "sm_scale": scale}
    workspace = _workspace(query.device)
    if starts is None:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper
        wrapper = decode(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(*pages, *shape, **dtypes)
        tokens = len(seq_lens)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(starts, *pages, *shape, causal=True, **dtypes)
        tokens = int(starts[-1])
    return partial(wrapper.run, query[:tokens], (key_cache, value_cache), out=out[:tokens])


def _result_is_written(_result: Any, *_args: Any, **_kwargs: Any) -> None:
    """Return None: FlashInfer returns `out` too."""


def paged_attention(flashinfer: Any) -> Bound:
    """Adapt the wrapper of prefills."""
    return Bound("paged_attention", partial(_bind, flashinfer), _result_is_written)


def decode_attention(flashinfer: Any) -> Bound:
    """Adapt the wrapper of decodes."""

    def bind(query: Any, key_cache: Any, value_cache: Any, *args: Any, **kwargs: Any) -> Thunk:
        return _bind(flashinfer, query, key_cache, value_cache, None, *args, **kwargs)

    return Bound("decode_attention", bind, _result_is_written)
