"""Read and write the memory of tensors by address inside compiled loops.

Loops that run once an engine step take addresses, because passing tensors dominates the
time of a small batch: `tensor.numpy()` takes 500 ns, `tensor.data_ptr()` 50 ns. The caller
keeps the tensor alive and passes a dense tensor of the declared dtype and length.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import ctypes
from functools import cache

import numpy as np

from .arrays import Array, Integers


def int32_at(address: int, length: int) -> Array:
    """Return an array of `length` int32 at `address`; also callable in compiled loops."""
    return np.ctypeslib.as_array((ctypes.c_int32 * length).from_address(address)).view(Integers)


def int64_at(address: int, length: int) -> Array:
    """Return an array of `length` int64 at `address`; also callable in compiled loops."""
    return np.ctypeslib.as_array((ctypes.c_int64 * length).from_address(address)).view(Integers)


def uint8_at(address: int, length: int) -> Array:
    """Return an array of `length` bytes at `address`; also callable in compiled loops."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address)).view(Integers)


def element(address: int, index: int, wide: bool) -> int:
    """Return element `index` of the integers at `address`, int64 if `wide`, otherwise int32.

    Also callable in compiled loops.
    """
    kind = ctypes.c_int64 if wide else ctypes.c_int32
    return kind.from_address(address + ctypes.sizeof(kind) * index).value


def set_element(address: int, index: int, wide: bool, value: int) -> None:
    """Write element `index` of the integers at `address`, int64 if `wide`, otherwise int32.

    Also callable in compiled loops.
    """
    kind = ctypes.c_int64 if wide else ctypes.c_int32
    kind.from_address(address + ctypes.sizeof(kind) * index).value = int(value)


@cache
def register_with_numba() -> None:
    """Register machine code of the functions above with numba."""
    from numba import carray, types
    from numba.extending import intrinsic, overload

    @intrinsic
    def pointer(_typing, address, dtype):
        target = types.CPointer(dtype.dtype)

        def generate(context, builder, _signature, args):
            return builder.inttoptr(args[0], context.get_value_type(target))

        return target(address, dtype), generate

    @overload(int32_at)
    def _int32_at(address, length):  # noqa: ARG001  # numba passes types here
        return lambda address, length: carray(pointer(address, np.int32), length)

    @overload(int64_at)
    def _int64_at(address, length):  # noqa: ARG001  # numba passes types here
        return lambda address, length: carray(pointer(address, np.int64), length)

    @overload(uint8_at)
    def _uint8_at(address, length):  # noqa: ARG001  # numba passes types here
        return lambda address, length: carray(pointer(address, np.uint8), length)

    @overload(element)
    def _element(address, index, wide):  # noqa: ARG001  # numba passes types here
        def read(address, index, wide):
            if wide:
                return int64_at(address, index + 1)[index]
            return np.int64(int32_at(address, index + 1)[index])

        return read

    @overload(set_element)
    def _set_element(address, index, wide, value):  # noqa: ARG001  # numba passes types here
        def write(address, index, wide, value):
            if wide:
                int64_at(address, index + 1)[index] = value
            else:
                int32_at(address, index + 1)[index] = value

        return write
