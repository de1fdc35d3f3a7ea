"""The one way of a case from outside: from a file, a folder, standard input, a run, a database.

Each is decoded to the declared types and checked (`case_check.problem_of`) before anything else
reads it. Sizes are bounded, and only regular files are opened.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec

from attnproof.harness.model.case import Batch, Case, Origin, Sourced
from attnproof.harness.model.files import DamagedError, decode_json, read_regular
from attnproof.harness.model.inline_case import SCHEMA
from attnproof.harness.recorder.schema import MAGIC
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.results import CASES

STANDARD_INPUT = "-"
"""Name of standard input in place of a file's."""
MOST_BYTES = 2**26
"""Maximum size of a case file and of a line of the cases of a run."""
_MOST_UNPACKED = 2**34
"""Maximum size of all cases of a run."""
_MOST_MEMORY = 2**28
"""Maximum memory in bytes for the dictionary of an archive."""
_PIECE_BYTES = 2**20
"""Bytes that are unpacked at a time."""

_START = re.compile(r'\{\s*"schema"\s*:\s*"attnproof\.case/')
"""Start of a case file inside other text."""


class CaseError(ValueError):
    """A case that cannot be used; the message is one sentence that begins with its place."""


class CaseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A case as stored on disk, with the failure that it showed."""

    schema: str = SCHEMA
    case: Case
    origin: Origin = "corpus"
    source: str = ""
    candidate: str = ""
    """Name of the candidate that failed on it."""
    target: str = ""
    """Module name or file path from which that candidate was loaded."""
    diagnosis: str = ""
    """Description of the failure."""


class _Line(msgspec.Struct):
    """Fields of a line that a case is found by; other fields are ignored."""

    event: str
    id: str = ""
    batch_id: str = ""
    batch: msgspec.Raw = msgspec.Raw()
    case: msgspec.Raw = msgspec.Raw()


def write_case(path: Path, saved: CaseFile) -> None:
    """Write one case file as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n")


def read_case(name: str | Path) -> CaseFile:
    """Read the case file `name`, standard input for "-". Raise CaseError.

    On standard input other text may stand around the case, such as that of a comment.
    """
    if name == STANDARD_INPUT:
        place = "standard input"
        return _case_file(_found_in(_read(sys.stdin.buffer, place)), place)
    place = f"case file {name}"
    try:
        data = read_regular(name, MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error  # NUL in the name
        raise CaseError(f"{place} cannot be read: {reason}") from None
    return _case_file(data, place)


def read_corpus(folder: Path) -> list[Sourced]:
    """Read all cases below a folder, ordered by path.

    Raise CaseError if it is no folder, holds no case, or holds one that cannot be used.
    """
    if not os.path.isdir(folder):  # noqa: PTH112 (`is_dir` raises for a name that is too long)
        raise CaseError(f"corpus {folder} is not a folder")
    paths = sorted(folder.rglob("*.json"))
    if not paths:
        raise CaseError(f"corpus {folder} holds no case file (*.json)")
    return [
        Sourced(read_case(path).case, "corpus", str(path.relative_to(folder))) for path in paths
    ]


def find_case(name: str, out: Path) -> CaseFile:
    """Return the case in the file `name`, or with the id `name` in the run in `out`.

    "-" is standard input. Raise CaseError.
    """
    path = Path(name)
    if name == STANDARD_INPUT or path.suffix == ".json" or os.path.lexists(path):
        return read_case(name)
    saved, archive = out / "cases" / f"{name}.json", out / CASES
    if saved.is_file():
        return read_case(saved)
    case = _in_archive(name, archive) if archive.is_file() else None
    if case is None:
        raise CaseError(f"no case {name!r}: not a file, and not a case of the run in {out}")
    return CaseFile(case=case)


def remembered_case(data: bytes) -> Case:
    """Decode the bytes that `model.case.encode` made in an earlier run. Raise CaseError."""
    return _checked(_decoded(data, Case, "remembered case"), "remembered case")


def _read(file: IO[bytes], place: str) -> bytes:
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise CaseError(f"{place} is larger than {MOST_BYTES} bytes")
    return data


def _found_in(data: bytes) -> bytes:
    """Return the first case file in the text around it; all data if there is none."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data  # `_decoded` complains
    start = _START.search(text)
    if start is None:
        return data
    try:
        _, end = json.JSONDecoder().raw_decode(text, start.start())
    except (ValueError, RecursionError):
        end = len(text)
    return text[start.start() : end].encode()


def _case_file(data: bytes, place: str) -> CaseFile:
    if data.startswith(MAGIC):
        raise CaseError(f"{place} is a recording: `attnproof verify --recorded` runs its batches")
    saved: CaseFile = _decoded(data, CaseFile, place)
    if saved.schema != SCHEMA:
        raise CaseError(f"{place} has schema {saved.schema!r}, expected {SCHEMA!r}")
    _checked(saved.case, place)
    return saved


def _in_archive(case_id: str, archive: Path) -> Case | None:
    """Return the case with this id, None if the run has none."""
    place = f"case {case_id} of {archive}"
    record = _line_of(archive, "case", case_id)
    if record is None:
        return None
    fields: dict[str, Any] = _decoded(record.case, dict[str, Any], place)
    if "batch_id" in fields:  # a large batch is written once, before the first case that has it
        batch = _line_of(archive, "batch", str(fields.pop("batch_id")))
        if batch is None:
            raise CaseError(f"{place} refers to a batch that is not in the file")
        fields["batch"] = _decoded(batch.batch, Batch, place)
    return _checked(_decoded(msgspec.json.encode(fields), Case, place), place)


def _line_of(archive: Path, event: str, identity: str) -> _Line | None:
    """Return the line of the case or batch, None without one (CaseError)."""
    for data in _lines(archive):
        if identity.encode(errors="replace") in data:
            line: _Line = _decoded(data, _Line, str(archive))
            if line.event == event and identity == (line.id or line.batch_id):
                return line
    return None


def _lines(archive: Path) -> Iterator[bytes]:
    """Yield the complete lines, of which one is in memory at a time. Raise CaseError."""
    try:
        import lzma
    except ModuleNotFoundError:
        raise CaseError(f"{archive} cannot be read: no module lzma") from None
    # `lzma.open` has no limit of memory, and a stream may ask for a dictionary of 4 GiB.
    decoder = lzma.LZMADecompressor(memlimit=_MOST_MEMORY)
    unpacked, rest = 0, b""
    try:
        with archive.open("rb") as file:
            while not decoder.eof:
                data = file.read(_PIECE_BYTES) if decoder.needs_input else b""
                if decoder.needs_input and not data:
                    raise EOFError("it is cut off")
                piece = decoder.decompress(data, _PIECE_BYTES)
                unpacked += len(piece)
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > MOST_BYTES or unpacked > _MOST_UNPACKED:
                    raise CaseError(f"{archive} is larger than a run's cases can be")
                yield from lines
    except (EOFError, OSError, lzma.LZMAError) as error:
        raise CaseError(f"{archive} cannot be read: {error}") from None


def _decoded(data: bytes | msgspec.Raw, kind: Any, place: str) -> Any:
    try:
        return decode_json(data, kind)
    except DamagedError as error:
        reason = (
            "is not a case"
            if isinstance(error.__cause__, msgspec.ValidationError)
            else "is corrupt"
        )
        raise CaseError(f"{place} {reason}: {error}") from None


def _checked(case: Case, place: str) -> Case:
    problem = problem_of(case)
    if problem:
        raise CaseError(f"{place}: {problem}")
    return case
