"""Read recordings: those of `attnproof record`, and files with one engine step a line as JSON.

A file comes from outside: it is read up to a size, and every value that is used is checked. A
problem is a `RecordingError` of one line with the file and the line or frame.
"""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from attnproof.harness.cases.recorded.steps import RecordedStep, RecordingError
from attnproof.harness.cases.recorded.stream import StreamReader
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.files import MOST_BYTES, read_regular
from attnproof.harness.recorder.schema import MAGIC, SUFFIX, Header

_MOST_LINE = 1 << 26
"""Most bytes of a line."""
_GZIP = b"\x1f\x8b"


def recording_files(path: Path) -> list[Path]:
    """Return the files of a recording: the path itself, or the ranks in a folder.

    Raises RecordingError for a path that is not there, a folder without recordings, and one with
    those of several engines or models.
    """
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise _unreadable(path, error) from None
    if not is_folder:
        return [path]
    files = sorted(path.glob(f"*{SUFFIX}"))
    if not files:
        raise RecordingError(f"{escape_line(str(path))}: a folder without files *{SUFFIX}")
    headers = [(file, StreamReader(_content(file), _name(file)).header) for file in files]
    first, *others = sorted(headers, key=lambda each: each[1].manager is not None)
    for file, header in others:
        identity = _identity(header)
        if header.manager is not None:  # it knows no model and no ranks
            identity = identity._replace(model=first[1].model, world=first[1].world)
        if identity != _identity(first[1]):
            raise RecordingError(
                f"{escape_line(str(path))}: recordings of different engines or models, which are "
                f"given one by one: {_named(*first)}, {_named(file, header)}"
            )
    return files


class _Identity(NamedTuple):
    """What the ranks of one engine have in common."""

    engine: str
    version: str
    model: str
    max_model_len: int
    world: dict[str, int]


def _identity(header: Header) -> _Identity:
    return _Identity(
        header.engine, header.engine_version, header.model, header.max_model_len, header.world
    )


def _named(path: Path, header: Header) -> str:
    identity = _identity(header)
    return escape_line(
        f"{path.name} of {identity.engine} {identity.version}, {identity.model}, "
        f"{identity.max_model_len} tokens, ranks {identity.world}"
    )


def recorded_steps(path: Path, remarks: list[str]) -> Iterator[RecordedStep]:
    """Yield the engine steps of a file; add what it lacks to the remarks (RecordingError)."""
    data = _content(path)
    if data[:4] != MAGIC:
        yield from _json_steps(path, data)
        return
    reader = StreamReader(data, _name(path))
    yield from reader.steps()
    remarks += reader.remarks


def _json_steps(path: Path, data: bytes) -> Iterator[RecordedStep]:
    decoder = msgspec.json.Decoder(RecordedStep)
    number = 0
    for number, line in enumerate(_lines(path, data), 1):
        if not line.strip():
            continue
        try:
            step = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = escape_line(str(error).splitlines()[0])
            raise RecordingError(
                f"{_name(path)}, line {number}: not a recorded step ({reason})"
            ) from None
        step.line = number
        yield step
    if not number:
        raise RecordingError(f"{_name(path)}: empty")


def _lines(path: Path, data: bytes) -> Iterator[bytes]:
    plain: Any = gzip.GzipFile(fileobj=io.BytesIO(data)) if data[:2] == _GZIP else None
    stream = plain or io.BytesIO(data)
    total = 0
    try:
        while line := stream.readline(_MOST_LINE + 1):
            total += len(line)
            if len(line) > _MOST_LINE or total > MOST_BYTES:
                raise RecordingError(f"{_name(path)}: too large to be read")
            yield line
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def _content(path: Path) -> bytes:
    try:
        return read_regular(path)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> RecordingError:
    reason = escape_line(getattr(error, "strerror", None) or str(error))
    return RecordingError(f"{escape_line(str(path))} cannot be read: {reason}")


def _name(path: Path) -> str:
    return escape_line(path.name)
