"""Guarded memory for the tensors of a call, with a snapshot to detect unexpected writes.

Every input of a call is a view into one buffer per dtype and device. The words between
inputs are poisoned with a known pattern, so one comparison with the snapshot detects both
a modified input and a write beside it. The names and shapes of the inputs decide how they lie on
the CPU: in storages of their own, as `torch.zeros` makes them, or as slices of one storage, as
those of engines, and at which address and offset: half of them begin at a multiple of eight words.
With the second pattern they follow each other without words between them: such inputs do not
overlap.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import torch

GUARD_WORDS = 32
"""Poisoned words before and after each tensor, or all of them."""
_PLACES = 8
"""Number of addresses and of storage offsets, in words, at which memory on the CPU may begin."""
STALE_PATTERNS = (0x5A5A5A5B, 0)
"""Poison patterns for stale places: one far out of range, one that is a valid value."""
UNWRITTEN_PATTERNS = (0x5A5B5A5B, 0)
"""Contents of buffers to fill: a stale entry that is copied behind the live ones shows."""


class Piece(NamedTuple):
    """One tensor to lay out."""

    name: str
    values: np.ndarray
    on_cpu: bool
    """True if the tensor stays on the CPU for any device of the call."""
    strides: tuple[int, ...]
    """Strides in elements; strides above those of a dense tensor leave poison between."""


class Placement(NamedTuple):
    """Placement of a call's tensors in memory on the CPU."""

    alone: bool = False
    """True if each has a storage of its own, as `torch.zeros` makes it."""
    backwards: bool = False
    """True if the last one comes first where they follow each other without words between."""
    offset: int = 0
    """Storage offset of the first one, in words, from a multiple of eight; of the others by
    chance if it is not 0."""


class UnexpectedWrite(NamedTuple):
    """A word of an arena that changed and must not change."""

    name: str
    """Name of the nearest input."""
    word: int
    """Offset from the start of that input in words; negative before it."""
    inside: bool
    """True if the word is an element of the input, False if it is poison."""


class _Segment(NamedTuple):
    name: str
    offset: int
    extent: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Plan(NamedTuple):
    """Places of the tensors of one dtype in a buffer."""

    segments: list[_Segment]
    start: int
    """Words before the buffer, which decide its address."""
    words: int
    alone: bool
    """True if each tensor has a storage of its own."""
    backwards: bool
    """True if the last tensor comes first."""


@lru_cache(4096)
def _plan(
    pieces: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...],
    close: bool,
    on_cpu: bool,
    placement: Placement | None,
) -> _Plan:
    """Return the places of tensors with these names, shapes and strides in elements.

    With `close` there are no words between them. Each call of a case asks for the same places.
    """
    layout = zlib.crc32(repr([(name, shape) for name, shape, _ in pieces]).encode())
    if placement is not None:
        layout = int(placement.alone or placement.backwards) + (2 if placement.offset else 0)
        layout += 4 * placement.offset + 4 * _PLACES * placement.offset
    backwards = close and layout % 2 == 1
    # Code that copies wider words must look at the address, not at the storage offset alone.
    shifted = on_cpu and layout // 2 % 2 == 1
    segments, offset = [], GUARD_WORDS + (layout // 4 // _PLACES % _PLACES if shifted else 0)
    for name, shape, strides in pieces[::-1] if backwards else pieces:
        if not shifted and not close:
            offset = -(-offset // _PLACES) * _PLACES
        extent = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
        extent = extent if math.prod(shape) else 0
        segments.append(_Segment(name, offset, extent, shape, strides))
        offset += extent + (0 if close else GUARD_WORDS)
    return _Plan(
        segments,
        start=layout // 4 % _PLACES if shifted else 0,
        words=offset + (GUARD_WORDS if close else 0),
        alone=layout % 2 == 1 and not close and on_cpu,
        backwards=backwards,
    )


@cache
def _largest(dtype: np.dtype) -> int:
    return 1 if dtype == np.bool_ else int(np.iinfo(dtype).max)


_earlier: ContextVar[Arena | None] = ContextVar("earlier", default=None)


@contextmanager
def filled_anew(earlier: Arena | None) -> Iterator[None]:
    """Let the first arena that is made inside the block take the tensors of an earlier one.

    Those of a dtype are filled with the new values if they are laid out alike.
    """
    token = _earlier.set(earlier)
    try:
        yield
    finally:
        _earlier.reset(token)


class Arena:
    """Memory of all tensors of one call; `tensors` holds them by name."""

    def __init__(
        self,
        pieces: list[Piece],
        stale: int,
        device: str = "cpu",
        placement: Placement | None = None,
    ) -> None:
        self._placement = placement
        self.tensors: dict[str, torch.Tensor] = {}
        self._buffers: list[torch.Tensor] = []
        self._snapshots: list[torch.Tensor] = []
        self._segments: list[list[_Segment]] = []
        self._device_names = {piece.name for piece in pieces if not piece.on_cpu}
        groups: dict[tuple[str, bool], list[Piece]] = {}
        earlier = _earlier.get()
        _earlier.set(None)  # two arenas of one call must not share memory
        for piece in pieces:
            on_cpu = piece.on_cpu or device == "cpu"
            groups.setdefault((piece.values.dtype.str, on_cpu), []).append(piece)
        for (_, on_cpu), members in groups.items():
            self._lay_out(members, stale, "cpu" if on_cpu else device, earlier)

    def _lay_out(self, pieces: list[Piece], stale: int, device: str, earlier: Arena | None) -> None:
        close = stale == STALE_PATTERNS[1]
        on_cpu = device == "cpu"
        shapes = tuple([(piece.name, piece.values.shape, piece.strides) for piece in pieces])
        plan = _plan(shapes, close, on_cpu, self._placement)
        segments, start, alone = plan.segments, plan.start, plan.alone
        if plan.backwards:
            pieces = pieces[::-1]
        dtype = pieces[0].values.dtype
        # A dtype too narrow for the pattern gets its largest word, which is a NaN as a float.
        buffer = np.full(start + plan.words, min(stale, _largest(dtype)), dtype=dtype)[start:]
        word = buffer.itemsize
        for piece, segment in zip(pieces, segments, strict=True):
            values = np.ndarray(
                segment.shape,
                buffer.dtype,
                buffer,
                segment.offset * word,
                tuple(s * word for s in segment.strides),
            )
            values[...] = piece.values
        memory = torch.from_numpy(buffer)
        memory = memory if device == "cpu" else memory.to(device)
        if earlier is not None and earlier._has(len(self._buffers), memory, segments):
            # The tensors' own version counters stay, as after a write through numpy.
            memory = earlier._buffers[len(self._buffers)].copy_(memory)
            for segment in segments:
                self.tensors[segment.name] = earlier.tensors[segment.name]
        else:
            for segment in segments:
                part, start = memory, segment.offset
                if alone:  # a storage of its own, without guard words
                    part, start = torch.from_numpy(buffer[start : start + segment.extent]), 0
                view = part.as_strided(segment.shape, segment.strides, start)
                self.tensors[segment.name] = view.data  # with a version of its own
        self._buffers.append(memory)
        self._snapshots.append(memory.clone())
        self._segments.append(segments)

    def _has(self, number: int, memory: torch.Tensor, segments: list[_Segment]) -> bool:
        """True if the buffer of this number is like `memory` and holds the same tensors."""
        if number >= len(self._buffers) or self._segments[number] != segments:
            return False
        own = self._buffers[number]
        return (own.dtype, own.device, own.shape) == (memory.dtype, memory.device, memory.shape)

    @property
    def buffers(self) -> list[torch.Tensor]:
        """The memory, one tensor for each dtype and device."""
        return self._buffers

    def load(self, buffers: list[torch.Tensor]) -> None:
        """Copy the memory of an equal arena, in which a call was made."""
        for buffer, other in zip(self._buffers, buffers, strict=True):
            buffer.copy_(other)

    @property
    def nbytes(self) -> int:
        """Memory of all tensors and their snapshots, in bytes."""
        return 2 * sum(buffer.nbytes for buffer in self._buffers)

    def touch(self) -> None:
        """Read all memory, so that caches hold it."""
        for buffer in self._buffers:
            buffer.amax()

    def unexpected_writes(self, written: frozenset[str] = frozenset()) -> list[UnexpectedWrite]:
        """Return the first change in each buffer; elements of inputs in `written` may change."""
        writes = []
        for buffer, snapshot, segments in zip(
            self._buffers, self._snapshots, self._segments, strict=True
        ):
            if torch.equal(buffer, snapshot):
                continue
            changed = buffer != snapshot
            for segment in segments:
                if segment.name in written:
                    changed.as_strided(segment.shape, segment.strides, segment.offset).fill_(False)
            if changed.any():
                writes.append(_locate(int(changed.nonzero()[0]), segments))
        return writes

    def versions(self) -> dict[str, int]:
        """Return for each input how often torch has written it in place, or a view of it."""
        return {name: tensor._version for name, tensor in self.tensors.items()}

    def owner(self, tensor: torch.Tensor) -> str | None:
        """Return the name of the input whose memory `tensor` overlaps, None without overlap."""
        start, stop = memory_of(tensor)
        if start == stop:
            return None
        for buffer, segments in zip(self._buffers, self._segments, strict=True):
            base, word = buffer.data_ptr(), buffer.element_size()
            if buffer.device != tensor.device or stop <= base or start >= base + buffer.nbytes:
                continue
            for segment in segments:
                first = base + segment.offset * word
                if start < first + segment.extent * word and stop > first:
                    return segment.name
        return None

    def is_on_device(self, tensor: torch.Tensor) -> bool:
        """True if `tensor` overlaps an input that is placed on the device of the call."""
        return self.owner(tensor) in self._device_names


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address of the first byte of the elements, and that after the last one."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + tensor.element_size() * (steps + 1)


def _locate(index: int, segments: list[_Segment]) -> UnexpectedWrite:
    nearest = segments[0]
    for segment in segments:
        if segment.offset <= index < segment.offset + segment.extent:
            nearest = segment
            break
        if segment.offset - GUARD_WORDS // 2 <= index:
            nearest = segment
    word = index - nearest.offset
    return UnexpectedWrite(nearest.name, word, _is_element(word, nearest))


def _is_element(word: int, segment: _Segment) -> bool:
    if not 0 <= word < segment.extent:
        return False
    for size, stride in zip(segment.shape, segment.strides, strict=True):
        quotient, word = divmod(word, stride)
        if quotient >= size:
            return False
    return word == 0
