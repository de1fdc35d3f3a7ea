"""Read recordings of `attnproof record`: frames in a stream of zstd (harness/recorder/schema.py).

A stream may end anywhere, as its writer may have been killed or may still write: whole steps
before that place are read. Damage before the end is a `RecordingError` with the frame.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec
import numpy as np

from attnproof.harness.cases.recorded.steps import Build, Called, RecordedStep, RecordingError
from attnproof.harness.escaping import escape_line
from attnproof.harness.recorder.schema import (
    MOST_PAYLOAD,
    PREFIX,
    SCHEMA,
    VERSION,
    WINDOW_BYTES,
    BuildFrame,
    End,
    Header,
    ManagerStep,
    Step,
    Tensor,
)

_MOST_BYTES = 1 << 36
"""Most bytes of a stream after decompression; they are never in memory together."""
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("int32", "int64", "uint8", "bool")}
_DTYPES["float32"] = np.dtype("<f4")
_INPUT_BYTES = 1 << 10
"""Bytes that are decompressed at a time: 4 bytes of zstd can hold 128 KiB."""
_MOST_DIMENSIONS = 4
_SPLIT = "split_decodes_and_prefills"
_ORDERLY = ("exit", "limit")


class _Mark(msgspec.Struct):
    """The part of a header that every version has."""

    schema: str = ""
    version: int = 0


class StreamReader:
    """One recording: its header, its steps, and remarks on what it lacks."""

    def __init__(self, data: bytes, name: str) -> None:
        self._name = name
        self._number = 0
        self._remains = 0
        """Bytes behind the last whole frame."""
        self._payloads = self._whole_payloads(data)
        self.header = self._read_header()
        """Facts that hold for all steps."""
        self.remarks: list[str] = []
        """What the recording lacks, a line each; complete after the last step."""

    def steps(self) -> Iterator[RecordedStep]:
        """Yield the engine steps (RecordingError)."""
        decoder = msgspec.msgpack.Decoder(Step | ManagerStep | End)
        count, drafting, end, omitted = 0, 0, None, set[str]()
        for payload in self._payloads:
            frame = self._decoded(decoder, payload)
            if isinstance(frame, End):
                end = frame
                break
            count += 1
            if isinstance(frame, ManagerStep):
                sizes, line = self.header.manager, self._number
                yield RecordedStep([], step=frame.step, line=line, manager=frame, sizes=sizes)
                continue
            step = self._recorded_step(frame)
            drafting += len(frame.builds) - len(step.builds)
            omitted.update(name for build in frame.builds for name in build.omitted)
            yield step
        if not count:
            raise RecordingError(f"{self._name}: holds no whole step")
        if end is None:
            self.remarks.append(
                f"cut off, killed or still being written: {count} whole steps read, "
                f"{self._remains} bytes behind them are no whole step"
            )
        elif end.dropped:
            self.remarks.append(f"{end.dropped} steps dropped while recording: the queue was full")
        if end is not None and end.reason not in _ORDERLY:
            self.remarks.append(f"the recorder was stopped by {escape_line(end.reason)}")
        if drafting:
            self.remarks.append(f"{drafting} builds for drafting not compared")
        if omitted:
            names = ", ".join(map(escape_line, sorted(omitted)))
            self.remarks.append(f"fields that were not recorded: {names}")

    def _whole_payloads(self, data: bytes) -> Iterator[bytes]:
        """Yield the payload of each whole frame; count the bytes behind the last one."""
        buffer, total = bytearray(), 0
        for piece in self._decompressed(data):
            buffer += piece
            total += len(piece)
            if total > _MOST_BYTES:
                self._refuse(f"more than {_MOST_BYTES} bytes after decompression")
            while len(buffer) >= PREFIX.size:
                length, checksum = PREFIX.unpack_from(buffer)
                if length > MOST_PAYLOAD:
                    self._refuse(f"{length} bytes are more than a frame has")
                end = PREFIX.size + length
                if len(buffer) < end:
                    break
                payload = bytes(buffer[PREFIX.size : end])
                del buffer[:end]
                self._number += 1
                if zlib.crc32(payload) != checksum:
                    self._refuse("damaged (its checksum differs)")
                yield payload
        self._remains = len(buffer)

    def _decompressed(self, data: bytes) -> Iterator[bytes]:
        """Yield what is whole of a stream, in pieces of at most 32 MiB."""
        try:
            import zstandard
        except ImportError:
            raise RecordingError(
                f'{self._name} needs zstandard: pip install "attnproof[record]"'
            ) from None
        stream = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).decompressobj()
        for start in range(0, len(data), _INPUT_BYTES):
            try:
                yield stream.decompress(data[start : start + _INPUT_BYTES])
            except zstandard.ZstdError as error:
                self._refuse(f"damaged ({escape_line(str(error))})")
            if stream.eof:
                return

    def _read_header(self) -> Header:
        payload = next(self._payloads, b"")
        if not payload:
            raise RecordingError(f"{self._name}: holds no whole step")
        mark = self._decoded(msgspec.msgpack.Decoder(_Mark), payload)
        if mark.schema != SCHEMA:
            self._refuse(f"no header of {SCHEMA}")
        if mark.version > VERSION:
            raise RecordingError(
                f"{self._name}: version {mark.version} of the format is later than {VERSION}, the "
                "last that this attnproof reads"
            )
        header: Header = self._decoded(msgspec.msgpack.Decoder(Header), payload)
        if max(header.world.get(f"{kind}_context", 1) for kind in ("decode", "prefill")) > 1:
            raise RecordingError(f"{self._name}: recorded with context parallelism, not read yet")
        return header

    def _recorded_step(self, frame: Step) -> RecordedStep:
        tensors = [{"t": tensor.dtype, "v": self._array(tensor)} for tensor in frame.tensors]
        cams = [self._fields(build, tensors) for build in frame.builds]
        compared = [build.door != "drafting" for build in frame.builds]
        builds = [
            Build(build.block_size, cam, escape_line(build.spec), escape_line(build.builder))
            for build, cam, taken in zip(frame.builds, cams, compared, strict=True)
            if taken
        ]
        calls = []
        for split in frame.splits:
            if split.build >= len(cams):
                self._refuse("a split names no build")
            if compared[split.build]:
                calls.append(Called(_SPLIT, [cams[split.build]], split.arguments, split.result))
        return RecordedStep(builds, calls, step=frame.step, line=self._number)

    def _fields(self, build: BuildFrame, tensors: list[dict[str, Any]]) -> dict[str, Any]:
        if any(index >= len(tensors) for index in build.tensors.values()):
            self._refuse("a build names no tensor")
        named = {name: tensors[index] for name, index in build.tensors.items()}
        return {"__class__": "CommonAttentionMetadata", **build.numbers, **named}

    def _array(self, tensor: Tensor) -> np.ndarray:
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None or len(tensor.shape) > _MOST_DIMENSIONS:
            self._refuse("a tensor of no known dtype and shape")
        if math.prod(tensor.shape) * dtype.itemsize != len(tensor.data):
            self._refuse(f"a tensor of shape {tensor.shape} with {len(tensor.data)} bytes")
        if tensor.dtype == "bool" and tensor.data.strip(b"\0\1"):
            self._refuse("a tensor of bool with other bytes than 0 and 1")
        return np.frombuffer(tensor.data, dtype).reshape(tensor.shape)

    def _decoded(self, decoder: msgspec.msgpack.Decoder[Any], payload: bytes) -> Any:
        try:
            return decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(f"not a recorded step ({escape_line(str(error).splitlines()[0])})")

    def _refuse(self, reason: str) -> NoReturn:
        raise RecordingError(f"{self._name}, frame {max(1, self._number)}: {reason}")
