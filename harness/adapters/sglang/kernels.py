"""SGLang's Triton kernels under our names, launched as SGLang does; for the lane interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from attnproof.harness.adapters.sglang.pool import KERNELS, pool_writer
from attnproof.harness.adapters.single_engines import Bound, Launch, module_of
from attnproof.harness.model.call import Thunk

module = partial(module_of, "SGLang")
_ALLOCATOR = "sglang.kernels.ops.memory.allocator"
_INDICES = "sglang.kernels.ops.attention.kv_indices"
_POSITION = "sglang.kernels.ops.attention.position"


def _alloc_extend() -> Bound:
    kernel = module(_ALLOCATOR).alloc_extend_kernel

    def bind(prefix_lens: torch.Tensor, *tensors_and_size: Any) -> Thunk:
        *tensors, size = tensors_and_size
        rows = len(prefix_lens)
        return partial(kernel[(rows,)], prefix_lens, *tensors, _power_of_2(rows), size)

    return Launch("alloc_extend", bind, written=4)


def _alloc_decode() -> Bound:
    kernel = module(_ALLOCATOR).alloc_decode_kernel

    def bind(seq_lens: torch.Tensor, *tensors_and_size: Any) -> Thunk:
        *tensors, size = tensors_and_size
        rows = len(seq_lens)
        return partial(kernel[(rows,)], seq_lens, *tensors, _power_of_2(rows), size)

    return Launch("alloc_decode", bind, written=3)


def _kv_indices() -> Bound:
    kernel = module(_INDICES).create_flashinfer_kv_indices_triton

    def bind(table: torch.Tensor, rows: torch.Tensor, *others: Any, entry_page_size: Any) -> Thunk:
        launch = kernel[(len(rows),)]
        stride = table.stride(0)
        return partial(launch, table, rows, *others, stride, ENTRY_PAGE_SIZE=entry_page_size)

    return Launch("create_flashinfer_kv_indices", bind, written=5)


def _write_pool() -> Bound:
    # The writer passes the width of the table, its engine's own, as the stride of its rows.
    bind = pool_writer("triton").bind
    return Launch("write_req_to_token_pool", bind, written=0, row_stride=False)


def _function(home: str, name: str, operation: str) -> Bound:
    """Return a function that launches a kernel and returns its results."""
    function = getattr(module(home), name)
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
