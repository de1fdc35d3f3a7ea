"""The memory of tensors as arrays inside compiled loops.

A small batch costs what its tensors cost to hand over: `tensor.numpy()` is 500 ns,
`tensor.data_ptr()` 50. So the loops of what runs once a step take addresses. Whoever
passes one keeps the tensor alive, and knows its dtype, length and that it is dense.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from .arrays import Array


def int32_at(address: int, length: int) -> Array:
    """`length` int32 from `address` on, in compiled loops too."""
    return np.ctypeslib.as_array((ctypes.c_int32 * length).from_address(address))


def int64_at(address: int, length: int) -> Array:
    """`length` int64 from `address` on, in compiled loops too."""
    return np.ctypeslib.as_array((ctypes.c_int64 * length).from_address(address))


def element(address: int, index: int, wide: bool) -> int:
    """One of the int64 from `address` on, of the int32 if not `wide`; in compiled loops too."""
    at = int64_at if wide else int32_at
    return int(at(address, index + 1)[index])


@cache
def teach_numba() -> None:
    """Tell numba what the functions above are in machine code."""
    from numba import carray, types
    from numba.extending import intrinsic, overload

    @intrinsic
    def pointer(_typing, address, dtype):
        target = types.CPointer(dtype.dtype)

        def generate(context, builder, _signature, args):
            return builder.inttoptr(args[0], context.get_value_type(target))

        return target(address, dtype), generate

    @overload(int32_at)
    def _int32_at(address, length):  # noqa: ARG001  # their types
        return lambda address, length: carray(pointer(address, np.int32), length)

    @overload(int64_at)
    def _int64_at(address, length):  # noqa: ARG001  # their types
        return lambda address, length: carray(pointer(address, np.int64), length)

    @overload(element)
    def _element(address, index, wide):  # noqa: ARG001  # their types
        def read(address, index, wide):
            if wide:
                return int64_at(address, index + 1)[index]
            return np.int64(int32_at(address, index + 1)[index])

        return read
