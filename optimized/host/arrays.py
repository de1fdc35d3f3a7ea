"""CPU tensors as the few kinds of numpy array that the loops are compiled for.

A loop sees its offsets and lengths as contiguous arrays of one dtype, int32 or int64,
and a table as a flat array with strides, so that mixed dtypes and strided inputs
compile nothing new.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


def common_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """int32 if all tensors are int32, otherwise int64."""
    for tensor in tensors:
        if tensor.dtype is not torch.int32:
            return torch.int64
    return torch.int32


def dense(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of `dtype`: itself where that is possible."""
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def array(tensor: torch.Tensor, dtype: torch.dtype) -> Array:
    """A contiguous array of `dtype`: a view of the tensor where that is possible."""
    view: Array = dense(tensor, dtype).numpy()
    return view


def pieces(tensor: torch.Tensor, sizes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Views of the tensor, one behind the other: cheaper than a tensor for each.

    "unsafe" to autograd only, which integers have none of; it saves a quarter.
    """
    return torch.unsafe_split_with_sizes(tensor, sizes)


def flat_table(table: torch.Tensor) -> tuple[Array, int, int]:
    """(flat view, row stride, column stride): `table[r, c] == flat[r * rows + c * columns]`."""
    row_stride, column_stride = table.stride()
    if not table.is_contiguous():
        rows, columns = table.shape
        span = 1 + (rows - 1) * row_stride + (columns - 1) * column_stride
        table = table.as_strided((span if table.numel() else 0,), (1,))
    return table.numpy().reshape(-1), row_stride, column_stride


def as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor itself if it has that dtype."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)
