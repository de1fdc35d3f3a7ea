"""Files from outside: only regular ones are read, and only up to a size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import msgspec

MOST_BYTES = 1 << 30
"""Maximum size of a file, unless its reader has another one."""


def read_regular(path: str | Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.

    Raises OSError for anything else: a pipe may never end, and a device has no end.
    """
    # A file that says its size is not read to its limit first: a gigabyte takes seconds.
    larger = Path(path).stat().st_size > most_bytes
    data = _first_bytes(path, 0 if larger else most_bytes + 1)
    if larger or len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes} bytes", str(path))
    return data


def _first_bytes(path: str | Path, count: int) -> bytes:
    # Without O_NONBLOCK, opening a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:  # noqa: PTH123 (a descriptor)
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(count)


class DamagedError(Exception):
    """The content of a file is not what it should be; the text says why."""


def read_json(path: str | Path, kind: Any = Any, most_bytes: int = MOST_BYTES) -> Any:
    """Return the value of type `kind` that a regular file has as JSON (OSError; DamagedError)."""
    return decode_json(read_regular(path, most_bytes), kind)


def decode_json(data: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """Return the value of type `kind` (DamagedError: no JSON, no UTF-8, too deep, other types)."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise DamagedError("nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise DamagedError(str(error)) from error


def is_of_another(path: Path, mark: str) -> bool:
    """True if there is something at the path whose first 1000 bytes do not have the mark."""
    try:
        beginning = _first_bytes(path, 1000)
    except FileNotFoundError:
        return False
    except OSError:  # such as a folder, or a FIFO
        return True
    return bool(beginning) and mark.encode() not in beginning
