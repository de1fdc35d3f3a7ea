"""Convert CPU tensors to the few kinds of numpy array that the loops are compiled for.

Offsets and lengths become contiguous arrays of one dtype, int32 or int64, and a table
becomes a flat array with strides: mixed dtypes and strided inputs need no further compilation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]


class Integers(np.ndarray[Any, Any]):
    """An array that loops use as in compiled code where numba's compiler is off.

    Elements are Python ints: a sum does not wrap at 32 bits, a value that is stored does.
    """

    def __getitem__(self, index: Any) -> Any:
        """Return an element as an int, or a view."""
        value = super().__getitem__(index)
        return value.item() if isinstance(value, np.generic) else value

    def __setitem__(self, index: Any, value: Any) -> None:
        """Store a value, of an int that does not fit the lowest bits."""
        wrapped = np.int64(value).astype(self.dtype) if type(value) is int else value
        super().__setitem__(index, wrapped)

    def __iter__(self) -> Iterator[Any]:
        """Yield the elements as ints, or views."""
        return (self[i] for i in range(len(self)))


def dense(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a contiguous tensor of `dtype`, the argument itself if it is one."""
    if tensor.dtype is not dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def array(tensor: torch.Tensor, dtype: torch.dtype) -> Array:
    """Return a contiguous array of `dtype`, a view of the tensor if possible."""
    view: Array = dense(tensor, dtype).numpy()
    return view


def pieces(tensor: torch.Tensor, sizes: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return consecutive views of the tensor, which are cheaper than separate tensors."""
    # A quarter faster than the safe variant, and unsafe only for autograd.
    return torch.unsafe_split_with_sizes(tensor, sizes)


def as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the tensor converted to `dtype`, the argument itself if it has that dtype."""
    return tensor if tensor.dtype is dtype else tensor.to(dtype)


def vector(tensor: torch.Tensor) -> tuple[int, bool, int]:
    """Return address, true if it is int64, and stride of a 1-D integer tensor."""
    return tensor.data_ptr(), tensor.dtype is torch.int64, tensor.stride(0)
