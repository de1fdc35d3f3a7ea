"""Read recordings: files with one engine step a line as JSON, perhaps compressed by gzip.

A file comes from outside: it is read up to a size, and every value that is used is checked. A
problem is a `RecordingError` of one line with the file and the line.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from attnproof.harness.escaping import escape_line
from attnproof.harness.model.files import MOST_BYTES, read_regular

_MOST_LINE = 1 << 26
"""Most bytes of a line."""
_GZIP = b"\x1f\x8b"
Blocks = Annotated[int, Meta(ge=1, le=2**16)]


class RecordingError(Exception):
    """A recording cannot be read; the message is one line."""


class Build(msgspec.Struct):
    """Metadata of one KV-cache group that the engine made for a builder."""

    block_size: Blocks
    """Tokens per block."""
    cam: dict[str, Any]
    """Fields of the metadata; a tensor is {"t": dtype, "v": values}."""
    spec: str = ""
    """Kind of the group."""
    builder: str = ""


class Called(msgspec.Struct):
    """A call of a function that the engine made."""

    f: str
    """Name of the function."""
    args: list[Any]
    kwargs: dict[str, Any]
    result: Any


class RecordedStep(msgspec.Struct):
    """One engine step."""

    builds: list[Build]
    calls: list[Called] = []
    blocks_per_row: list[list[int]] = []
    """Blocks of each row, by KV-cache group."""
    step: int = 0
    line: int = 0
    """Line of the file."""


def recorded_steps(path: Path) -> Iterator[RecordedStep]:
    """Yield the engine steps of a recording (RecordingError)."""
    name = escape_line(path.name)
    decoder = msgspec.json.Decoder(RecordedStep)
    number = 0
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            step = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = escape_line(str(error).splitlines()[0])
            raise RecordingError(f"{name}, line {number}: not a recorded step ({reason})") from None
        step.line = number
        yield step
    if not number:
        raise RecordingError(f"{name}: empty")


def _lines(path: Path) -> Iterator[bytes]:
    name = escape_line(path.name)
    try:
        data = read_regular(path)
        plain: Any = gzip.GzipFile(fileobj=io.BytesIO(data)) if data[:2] == _GZIP else None
        stream = plain or io.BytesIO(data)
        total = 0
        while line := stream.readline(_MOST_LINE + 1):
            total += len(line)
            if len(line) > _MOST_LINE or total > MOST_BYTES:
                raise RecordingError(f"{name}: too large to be read")
            yield line
    except (OSError, EOFError, zlib.error) as error:
        reason = escape_line(getattr(error, "strerror", None) or str(error))
        raise RecordingError(f"{escape_line(str(path))} cannot be read: {reason}") from None
