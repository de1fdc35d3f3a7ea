"""Write-ahead ledger: one JSON line before a candidate gets a case, one after.

Each line is one write, so that it survives a process that dies in the call. A large batch
is written once; later lines refer to it by its hash.
"""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import msgspec

from attnproof.harness.model.case import Case, Sourced, encode
from attnproof.harness.phases import Phase, counted
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.running.task.deviations import Explained

_LARGE_BYTES = 4096
"""Size of a case above which its batch has a line of its own."""
_encode = msgspec.json.encode


class Ledger:
    """Append-only file of the cases of one task and their verdicts.

    Each method raises InfrastructureError if the file cannot be written.
    """

    def __init__(self, path: Path, operation: str, candidate: str) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise _unwritable(error.errno) from None
        self._head = _encode({"operation": operation, "candidate": candidate})[1:-1]
        self._batches: set[str] = set()
        self._announced = ""
        """Id of the last announced case, if it has no verdict yet."""

    @counted(Phase.LEDGER)
    def announce(self, sourced: Sourced) -> None:
        """Write the case before it is run, once if it is announced ahead."""
        if sourced.case.id == self._announced:
            return
        self._announced = sourced.case.id
        case, encoded = sourced.case, encode(sourced.case)
        if len(encoded) > _LARGE_BYTES and case.batch is not None:
            encoded = self._refer(case)
        origin = _encode({"origin": sourced.origin, "source": sourced.source})[1:-1]
        self._write(
            b'{"event":"case","id":"%s",%s,%s,"case":%s}\n'
            % (case.id.encode(), self._head, origin, encoded)
        )

    @counted(Phase.LEDGER)
    def settle(self, case: Case, explained: Explained) -> None:
        """Write the verdict: unexplained failures, then those that known deviations explain."""
        if case.id == self._announced:
            self._announced = ""
        unknown = _encode([[f.oracle, f.field, f.diagnosis] for f in explained.unknown])
        pairs = [[d.id, f.oracle, f.field, f.diagnosis] for d, f in explained.known]
        known = b',"known":%s' % _encode(pairs) if pairs else b""
        self._write(
            b'{"event":"verdict","id":"%s",%s,"failures":%s%s}\n'
            % (case.id.encode(), self._head, unknown, known)
        )

    def _refer(self, case: Case) -> bytes:
        batch = _encode(case.batch, order="deterministic")
        name = hashlib.blake2b(batch, digest_size=6).hexdigest()
        if name not in self._batches:
            self._batches.add(name)
            self._write(b'{"event":"batch","batch_id":"%s","batch":%s}\n' % (name.encode(), batch))
        rest = {"operation": case.operation, "batch_id": name, "params": case.params}
        optional = {"fault": case.fault, "before": case.before}
        return _encode(rest | {name: value for name, value in optional.items() if value})

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            raise _unwritable(error.errno) from None
        if written != len(line):
            raise _unwritable(errno.ENOSPC)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _unwritable(number: int | None) -> InfrastructureError:
    return InfrastructureError(f"the ledger cannot be written: {os.strerror(number or 0)}")
