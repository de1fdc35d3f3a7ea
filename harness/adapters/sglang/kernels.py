"""SGLang's Triton kernels under our names, launched as SGLang does; for the lane interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnproof.harness.adapters.sglang.pool import KERNELS, function_of, pool_writer
from attnproof.harness.adapters.single_engines import Bound, Launch
from attnproof.harness.model.call import Thunk

_ALLOCATOR = (
    "sglang.kernels.ops.memory.allocator",
    "sglang.srt.mem_cache.triton_ops.allocator",
    "sglang.srt.mem_cache.allocator",
)
_INDICES = (
    "sglang.kernels.ops.attention.kv_indices",
    "sglang.kernels.ops.kvcache.kv_indices",
    "sglang.srt.layers.attention.triton_ops.kv_indices",
    "sglang.srt.layers.attention.utils",
)
_POSITION = (
    "sglang.kernels.ops.attention.position",
    "sglang.srt.model_executor.triton_ops.position",
    "sglang.srt.model_executor.forward_batch_info",
)


def _alloc_extend() -> Bound:
    kernel = function_of(_ALLOCATOR, "alloc_extend_kernel")

    def bind(prefix_lens: torch.Tensor, *tensors_and_size: Any) -> Thunk:
        *tensors, size = tensors_and_size
        rows = len(prefix_lens)
        return partial(kernel[(rows,)], prefix_lens, *tensors, _power_of_2(rows), size)

    return Launch("alloc_extend", bind, written=4)


def _alloc_decode() -> Bound:
    kernel = function_of(_ALLOCATOR, "alloc_decode_kernel")

    def bind(seq_lens: torch.Tensor, *tensors_and_size: Any) -> Thunk:
        *tensors, size = tensors_and_size
        rows = len(seq_lens)
        return partial(kernel[(rows,)], seq_lens, *tensors, _power_of_2(rows), size)

    return Launch("alloc_decode", bind, written=3)


def _kv_indices() -> Bound:
    kernel = function_of(_INDICES, "create_flashinfer_kv_indices_triton")
    has_pages = "ENTRY_PAGE_SIZE" in kernel.arg_names

    def bind(table: torch.Tensor, rows: torch.Tensor, *others: Any, entry_page_size: Any) -> Thunk:
        launch = kernel[(len(rows),)]
        stride = table.stride(0)
        if not has_pages and entry_page_size != 1:  # the interpreter would ignore the argument
            raise TypeError("the kernel takes no ENTRY_PAGE_SIZE: its entries are tokens")
        pages = {"ENTRY_PAGE_SIZE": entry_page_size} if has_pages else {}
        return partial(launch, table, rows, *others, stride, **pages)

    return Launch("create_flashinfer_kv_indices", bind, written=5)


def _write_pool() -> Bound:
    # The writer passes the width of the table, its engine's own, as the stride of its rows.
    bind = pool_writer("triton").bind
    return Launch("write_req_to_token_pool", bind, written=0, row_stride=False)


def _function(places: tuple[str, ...], name: str, operation: str) -> Bound:
    """Return a function that launches a kernel and returns its results."""
    function = function_of(places, name)
    return Launch(operation, lambda *args: partial(function, *args))


def _power_of_2(number: int) -> int:
    """Return the next power of two, 1 for 0: as SGLang's own function."""
    return 1 << (number - 1).bit_length() if number else 1


OPERATIONS: dict[str, Callable[[], Bound]] = {
    "alloc_extend": _alloc_extend,
    "alloc_decode": _alloc_decode,
    "compute_position": partial(
        _function, _POSITION, "compute_position_triton", "compute_position"
    ),
    "create_flashinfer_kv_indices": _kv_indices,
    "get_last_loc": partial(_function, KERNELS, "get_last_loc_triton", "get_last_loc"),
    "write_req_to_token_pool": _write_pool,
}
"""Functions that make each operation of the lane."""
