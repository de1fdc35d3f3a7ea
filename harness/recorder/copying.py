"""Copies of an engine's tensors, taken before it fills its buffers anew."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.recorder.schema import Tensor

DTYPES = {
    torch.int32: "int32",
    torch.int64: "int64",
    torch.bool: "bool",
    torch.uint8: "uint8",
    torch.float32: "float32",
}


class Copies:
    """The tensors of one step; each is copied once, though several builders get it."""

    def __init__(self) -> None:
        self._indices: dict[tuple[Any, ...], int] = {}
        self._originals: list[torch.Tensor] = []  # alive, so that no address is used again
        self._taken: list[tuple[torch.Tensor, tuple[int, ...]]] = []
        """Contiguous copies on the CPU, and the strides of the originals in elements."""
        self.num_bytes = 0
        """Size of the copies in bytes."""
        self._event: torch.cuda.Event | None = None

    def take(self, tensor: torch.Tensor) -> int:
        """Copy a tensor, unless its memory was copied before; return its index."""
        # torch counts writes, so memory that was filled anew within the step is copied again.
        writes = -1 if tensor.is_inference() else tensor._version
        strides = tensor.stride()
        key = (tensor.data_ptr(), tensor.shape, strides, tensor.dtype, writes)
        index = self._indices.get(key)
        if index is not None:
            return index
        if tensor.is_cpu:
            copy = tensor.clone(memory_format=torch.contiguous_format)
        else:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copy.copy_(tensor, non_blocking=True)
            self._event = self._event or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(tensor.device))
        index = self._indices[key] = len(self._taken)
        self._originals.append(tensor)
        self._taken.append((copy, strides))
        self.num_bytes += copy.nbytes
        return index

    def release(self) -> None:
        """Forget the originals, which the engine may free."""
        self._originals.clear()
        self._indices.clear()

    def tensors(self) -> list[Tensor]:
        """Return the copies as values of a frame; wait for those of a device."""
        if self._event is not None:
            self._event.synchronize()
        return [
            Tensor(DTYPES[copy.dtype], list(copy.shape), list(strides), _bytes(copy))
            for copy, strides in self._taken
        ]


def _bytes(tensor: torch.Tensor) -> bytes:
    array = tensor.numpy()
    # Frames are little-endian on every machine.
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
