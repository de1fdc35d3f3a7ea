"""Outputs of a candidate as plain data, and back.

Tensors keep their dtype, shape, strides and device, and the memory that they share with each
other and with the inputs. A value that no operation returns becomes an `Unreadable`, which
equals nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from attnproof.harness.model.call import MISSING, Free
from attnproof.harness.model.place import Place
from attnproof.harness.model.text import text_of, utf8
from attnproof.harness.running.exchange.memory import SharedMemory

_ATOMS = frozenset((bool, float, type(None)))
_INT64 = range(-(2**63), 2**63)
_MOST_BITS = 10_000
"""Most bits of an integer that is passed on; Python prints at most 4,300 digits."""
_MOST_ELEMENTS = 1 << 28
"""Most elements of a tensor or an array."""
_MOST_REPEATED = 1 << 20
"""Most elements of a tensor that has fewer in memory: the judge may copy each of them."""
_MOST_CHARACTERS = 1 << 20
"""Most characters of a text that is passed on."""
_MOST_DEPTH = 50
_KINDS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "dict": dict}
_DTYPES: dict[str, torch.dtype] = {
    name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
Plain = Any
"""None, bool, int, float, str, bytes, or lists and dicts of them."""


class Unreadable:
    """Placeholder for a value that is no output of any operation."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Block(msgspec.Struct, frozen=True, array_like=True):
    """Memory that one or more tensors use."""

    offset: int
    """Offset in the shared memory, in bytes."""
    size: int
    """Bytes."""


class TensorData(msgspec.Struct, frozen=True, array_like=True):
    """A tensor without its elements."""

    block: int
    """Index of its block."""
    start: int
    """Offset in the block, in bytes."""
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: str


class Writer:
    """Writer of the values of one call."""

    def __init__(self, arena: Sequence[torch.Tensor]) -> None:
        """`arena` are the buffers that hold the inputs, which become the first blocks."""
        self._arena = [buffer.as_subclass(torch.Tensor) for buffer in arena]
        self._found: list[torch.Tensor] = []
        self._devices: list[str] = []
        """Devices of the found tensors, which a subclass may define."""

    def write(self, value: Any, depth: int = 0) -> Plain:
        """Return the value as plain data; tensors refer to the result of `blocks`."""
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind is int:
            return value if value in _INT64 else _large(value)
        if kind is str:
            if len(value) > _MOST_CHARACTERS:
                return {"t": "unreadable", "text": f"a str of {len(value):,} characters"}
            return value if value.isascii() else {"t": "str", "text": utf8(value)}
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if kind is list and _is_plain(value):
            return value
        if kind.__name__ in _KINDS and kind is _KINDS[kind.__name__] and depth < _MOST_DEPTH:
            items = value.items() if kind is dict else value
            return {"t": kind.__name__, "items": [self.write(i, depth + 1) for i in list(items)]}
        return _rarer(value)

    def blocks(self, memory: SharedMemory) -> tuple[list[Block], list[TensorData]]:
        """Copy the memory of arena and tensors; return its blocks, and the tensors.

        Raises MemoryError if there is no room.
        """
        ranges = [_Range(buffer) for buffer in self._arena]
        owners: dict[int, _Range] = {}
        for tensor in sorted(self._found, key=torch.Tensor.data_ptr):
            own = _Range(tensor)
            inside = (r for r in ranges[: len(self._arena)] if r.contains(own))
            last = ranges[-1] if len(ranges) > len(self._arena) else None
            owner = next(inside, last if last and last.overlaps(own) else own)
            owner.stop = max(owner.stop, own.stop)
            if owner is own:
                ranges.append(own)
            owners[id(tensor)] = owner
        tensors = [
            _described(tensor, device, ranges.index(owners[id(tensor)]), owners[id(tensor)])
            for tensor, device in zip(self._found, self._devices, strict=True)
        ]
        return [each.put(memory) for each in ranges], tensors

    def _tensor(self, tensor: torch.Tensor) -> Plain:
        try:
            plain = _in_memory(tensor)
        except Exception:  # a tensor without memory, or a subclass that forbids the look
            plain = None
        if plain is None:
            return _unreadable(tensor)
        self._found.append(plain)
        self._devices.append(str(tensor.device))
        return {"t": "tensor", "index": len(self._found) - 1}


class Reader:
    """Reader of the values of one call."""

    def __init__(self, blocks: Sequence[torch.Tensor], tensors: Sequence[TensorData]) -> None:
        """`blocks` are tensors whose memory holds the blocks."""
        self._blocks = blocks
        self._tensors = tensors

    def read(self, plain: Plain) -> Any:
        """Return the value (ValueError, TypeError, LookupError if no `Writer` wrote it)."""
        if type(plain) is not dict:
            return plain
        kind = plain["t"]
        if kind == "place":
            return Place(*plain["fields"])
        if kind == "tensor":
            return self._tensor(self._tensors[plain["index"]])
        if kind in _KINDS:
            items = [self.read(item) for item in plain["items"]]
            return _KINDS[kind](items)
        return _read_rarer(kind, plain)

    def _tensor(self, data: TensorData) -> torch.Tensor:
        dtype = _DTYPES[data.dtype]
        block = self._blocks[data.block]
        extent = 0
        if 0 not in data.shape:
            extent = 1 + sum((n - 1) * s for n, s in zip(data.shape, data.strides, strict=True))
        size = extent * dtype.itemsize
        if data.start < 0 or min((0, *data.strides)) < 0 or data.start + size > block.nbytes:
            raise ValueError("a tensor outside of its block")
        start = block.storage_offset() * block.itemsize + data.start
        storage = block.untyped_storage()
        if start % dtype.itemsize:  # the block itself is not aligned for the dtype
            copied = torch.empty(0, dtype=torch.uint8).set_(storage, start, (size,), (1,)).clone()
            storage, start = copied.untyped_storage(), 0
        tensor = torch.empty(0, dtype=dtype, device=block.device)
        tensor.set_(storage, start // dtype.itemsize, data.shape, data.strides)
        return tensor if data.device == str(block.device) else tensor.to(data.device)


class _Range:
    """Addresses of one or more tensors on a device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device = tensor.device
        self.start = tensor.data_ptr()
        self.stop = self.start + tensor.itemsize * _extent(tensor)
        self._first = tensor

    def contains(self, other: _Range) -> bool:
        return self.device == other.device and self.start <= other.start and other.stop <= self.stop

    def overlaps(self, other: _Range) -> bool:
        return self.device == other.device and self.start <= other.start < self.stop

    def put(self, memory: SharedMemory) -> Block:
        """Copy the memory of the range (MemoryError)."""
        size, address = self.stop - self.start, self.start
        if size and self.device.type != "cpu":  # an empty tensor has no address
            storage = self._first.untyped_storage()
            offset = self.start - storage.data_ptr()
            on_device = torch.empty(0, dtype=torch.uint8, device=self.device)
            host = on_device.set_(storage, offset, (size,), (1,)).cpu()
            address = host.data_ptr()
        memory_offset = memory.put(address, size)
        if memory_offset is None:
            raise MemoryError(f"no room for {size} bytes in the memory shared with the judge")
        return Block(memory_offset, size)


def _described(tensor: torch.Tensor, device: str, block: int, owner: _Range) -> TensorData:
    return TensorData(
        block,
        tensor.data_ptr() - owner.start,
        _NAMES[tensor.dtype],
        tuple(tensor.shape),
        tensor.stride(),
        device,
    )


def _extent(tensor: torch.Tensor) -> int:
    """Return the number of elements from the first one in memory to the last one."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def _in_memory(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tensor without gradient and views of other kinds, None if it has no elements."""
    plain = tensor.detach()
    if type(plain) is not torch.Tensor:
        plain = plain.as_subclass(torch.Tensor)
    if plain.layout is not torch.strided or plain.is_quantized or plain.is_meta or plain.is_nested:
        return None
    most = _MOST_ELEMENTS if plain.numel() <= _extent(plain) else _MOST_REPEATED
    if plain.numel() > most:
        return None
    return plain.resolve_conj().resolve_neg() if plain.is_complex() else plain


def _is_plain(items: list[Any]) -> bool:
    """True if all items are integers of 64 bits."""
    if not all(type(item) is int for item in items):
        return False
    return not items or (min(items) in _INT64 and max(items) in _INT64)


def _rarer(value: Any) -> Plain:
    """Return a value of the less frequent types as plain data."""
    kind = type(value)
    if value is MISSING:
        return {"t": "missing"}
    if kind is Place:
        return {"t": "place", "fields": list(value)}
    if kind is slice and all(type(v) in (int, type(None)) for v in (value.start, value.stop)):
        return {"t": "slice", "fields": [value.start, value.stop, value.step]}
    if kind is Free:
        return {"t": "free", "items": Writer(()).write(value.values)}
    array = isinstance(value, np.ndarray) and kind is np.ndarray
    if (array or isinstance(value, np.generic)) and not value.dtype.hasobject:
        if value.size > _MOST_ELEMENTS:
            return _unreadable(value)
        return {
            "t": "array" if array else "scalar",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": value.tobytes(),
        }
    return _unreadable(value)


def _read_rarer(kind: str, plain: Plain) -> Any:
    match kind:
        case "missing":
            return MISSING
        case "str":
            return plain["text"]
        case "large":
            return int(plain["digits"], 16)
        case "slice":
            return slice(*plain["fields"])
        case "free":
            return Free(**Reader((), ()).read(plain["items"]))
        case "array" | "scalar":
            array = np.frombuffer(bytearray(plain["data"]), dtype=np.dtype(plain["dtype"]))
            return array.reshape(plain["shape"]) if kind == "array" else array[0]
        case "unreadable":
            return Unreadable(plain["text"])
    raise ValueError(f"a value of kind {kind!r}")


def _large(value: int) -> Plain:
    """Return an integer of more than 64 bits."""
    if value.bit_length() > _MOST_BITS:
        return {"t": "unreadable", "text": f"an int of {value.bit_length():,} bits"}
    return {"t": "large", "digits": hex(value)}


def _unreadable(value: Any) -> Plain:
    if isinstance(value, torch.Tensor):
        try:
            layout = str(value.layout).removeprefix("torch.")
            described = f"{layout}, {value.dtype}, {value.device}, {list(value.shape)}"
        except Exception:  # a nested tensor has no shape; a subclass may forbid the look
            described = type(value).__name__
        return {"t": "unreadable", "text": utf8(f"a tensor that cannot be read: {described}")}
    return {"t": "unreadable", "text": f"{text_of(value)} ({type(value).__name__})"}
