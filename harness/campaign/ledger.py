"""The ledger of a campaign: a line for each order that has ended, on the disk before the next.

A driver that is killed loses what was running, and nothing else.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from attnproof.harness.campaign.records import Begun, Line
from attnproof.harness.model.files import read_regular
from attnproof.harness.running.errors import InfrastructureError, UsageError

LEDGER = "campaign.jsonl"
"""Name of the file in the campaign's folder."""
SCHEMA = "attnproof.campaign/1"
_decode = msgspec.json.Decoder(Line).decode


class CampaignLedger:
    """Append-only file; `begun` and `lines` are what an earlier driver has written."""

    def __init__(self, folder: Path, begun: Begun) -> None:
        """Open the ledger, or write its first line (UsageError, InfrastructureError)."""
        self._path = folder / LEDGER
        lines, whole = read_ledger(self._path)
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            os.ftruncate(self._descriptor, whole)  # a line that was cut off by a kill
        except OSError as error:
            raise _unwritable(self._path, error) from None
        if not lines:
            self.append(begun)
            self.sync()
            lines = [begun]
        first = lines[0]
        assert isinstance(first, Begun)
        self.begun, self.lines = first, lines[1:]

    def append(self, line: Line) -> None:
        """Write a line (InfrastructureError)."""
        data = msgspec.json.encode(line) + b"\n"
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def sync(self) -> None:
        """Wait until all lines are on the disk (InfrastructureError)."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _unwritable(self._path, error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def read_ledger(path: Path) -> tuple[list[Line], int]:
    """Return the whole lines and their length in bytes, nothing without a file (UsageError)."""
    lines: list[Line] = []
    whole = 0
    try:
        data = read_regular(path)
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            lines.append(_decode(line))
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise UsageError(f"{path}, line {number}, is not of a campaign: {error}") from None
        whole += len(line)
    if lines and not (isinstance(lines[0], Begun) and lines[0].schema == SCHEMA):
        raise UsageError(f"{path} is not the ledger of a campaign of this version")
    return lines, whole


def _unwritable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(f"{path} cannot be written: {error.strerror}")
