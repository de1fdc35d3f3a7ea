"""The thread that writes a recording."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import zstandard

from attnproof.harness.recorder.queue import BoundedQueue
from attnproof.harness.recorder.schema import SUFFIX, End, Header, ManagerStep, Step, framed

_POLL_S = 0.05
"""Time between looks at the queue."""
_FLUSH_S = 0.5
"""Time between flushes; twice a second keeps the promise of one second on a busy machine."""
_MOST_PENDING = 1 << 26
"""Maximum size of the steps that wait to be written, in bytes."""
_STEP_BYTES = 4096
"""Size of a step beside its tensors, an estimate for the bound of the queue."""
_MOST_BYTES = 1 << 30
"""Maximum size of a file in bytes, above which the recording ends."""
_LEVEL = 3
"""Level of zstd: level 1 takes as long, and its files are half as large again."""

Complete = Callable[[], Step | ManagerStep]
"""Completion of a frame on the writing thread."""


class Writer:
    """One file of a recording, and the thread that writes it.

    `failed` is called once on that thread with an error that ended the writing.
    """

    def __init__(self, folder: Path, header: Header, failed: Callable[[Exception], None]) -> None:
        self._queue: BoundedQueue[Complete] = BoundedQueue(_MOST_PENDING)
        self._encoder = msgspec.msgpack.Encoder()
        self._compressor = zstandard.ZstdCompressor(_LEVEL, write_checksum=True).compressobj()
        self._failed = failed
        self._reason = ""
        self._stopped = threading.Event()
        self._written = 0
        self._num_bytes = 0
        self._descriptor = _create(folder, header)
        self._compress(self._encoder.encode(header))
        self._flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        self._thread = threading.Thread(target=self._run, name="attnproof-record", daemon=True)
        self._thread.start()

    def put(self, complete: Complete, num_bytes: int) -> bool:
        """Hand a step to the thread, or drop it if too many wait; return False if dropped.

        The thread calls `complete` for its frame. It holds `num_bytes` in tensors and tokens.
        """
        return self._queue.offer(complete, num_bytes + _STEP_BYTES)

    def close(self, reason: str, timeout_s: float = 5.0) -> None:
        """Write the steps that wait, and end the file; wait for it up to a time."""
        self._reason = self._reason or reason
        self._stopped.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._write_steps()
        except Exception as error:  # whatever it is, the engine must not see it
            self._failed(error)
        finally:
            os.close(self._descriptor)

    def _write_steps(self) -> None:
        flushed, pending = time.monotonic(), False
        while True:
            stopping = bool(self._reason)  # read first: what was put before the reason is taken
            complete = self._queue.take()
            if self._num_bytes > _MOST_BYTES:
                raise OSError(f"the file has {_MOST_BYTES} bytes, which is the most")
            if complete is not None:
                self._compress(self._encoder.encode(complete()))
                self._written += 1
                pending = True
            elif stopping:
                end = End(self._written, self._queue.dropped, self._reason)
                self._compress(self._encoder.encode(end))
                self._flush(zstandard.COMPRESSOBJ_FLUSH_FINISH)
                return
            else:
                self._stopped.wait(_POLL_S)
            if pending and time.monotonic() - flushed >= _FLUSH_S:
                self._flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
                flushed, pending = time.monotonic(), False

    def _compress(self, payload: bytes) -> None:
        self._write(self._compressor.compress(framed(payload)))

    def _flush(self, mode: int) -> None:
        self._write(self._compressor.flush(mode))

    def _write(self, data: bytes) -> None:
        self._num_bytes += len(data)
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]


def _create(folder: Path, header: Header) -> int:
    """Create the file of this process; return its descriptor."""
    folder.mkdir(parents=True, exist_ok=True)
    part = f"rank{header.rank}" if header.manager is None else "manager"
    stem = f"{header.engine}-{part}-pid{os.getpid()}"
    for number in range(1, 1000):
        name = f"{stem}-{number}{SUFFIX}" if number > 1 else f"{stem}{SUFFIX}"
        try:
            # Of two processes with one number, such as those of two containers, one gets the name.
            return os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            continue
    raise FileExistsError(f"1000 recordings of {stem}")
