"""The standard streams of the command line: open, and never the reason of an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAMES = {"stdin": 0, "stdout": 1, "stderr": 2}


def prepare_streams() -> None:
    """Open closed streams on /dev/null; let no character and no closed pipe raise an error.

    Call it before anything opens a file: the first file would get a closed stream's descriptor,
    and what is printed would go into that file.
    """
    for descriptor in _NAMES.values():
        if not _is_open(descriptor):
            # The lowest free descriptor is this one, because all below it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Another object is a replacement, such as that of pytest or of a notebook.
        if stream is None or stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, _writer(_NAMES[name], stream))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def output_problem() -> str:
    """Flush standard output; return why a part of it could not be written, "" if none."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.problem if isinstance(raw, _Output) else ""


class _Output(io.FileIO):
    """A descriptor that discards all further output after an error, so that the run goes on."""

    problem = ""
    """The error, "" if there was none or the reader has gone (`attnproof list | head`)."""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write the bytes, and return their number."""
        try:
            return super().write(data)
        except OSError as error:
            self.problem = "" if isinstance(error, BrokenPipeError) else error.strerror or "failed"
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


def _writer(descriptor: int, old: io.TextIOWrapper | None) -> io.TextIOWrapper:
    """Return a stream like `old` that shows what its encoding lacks as escapes."""
    if old is not None:
        old.flush()
    raw = _Output(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=old.encoding if old is not None else "utf-8",
        errors="backslashreplace",
        line_buffering=old.line_buffering if old is not None else True,
        write_through=old.write_through if old is not None else False,
    )
