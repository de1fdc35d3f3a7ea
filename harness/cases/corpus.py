"""Saved cases: the files `cases/<id>.json` of a run, and folders of them (a corpus)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnproof.harness.model.case import Case, Origin, Sourced

SCHEMA = "attnproof.case/1"


class CorpusError(ValueError):
    """A case file that cannot be read; the message is one line and names the file."""


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


def write_case(path: Path, saved: CaseFile) -> None:
    """Write one case file as indented JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n")


def read_case(path: Path) -> CaseFile:
    """Read a case file; raise CorpusError if it is missing, not JSON or not a case."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=CaseFile)
    except OSError as error:
        raise CorpusError(f"case file {path} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        raise CorpusError(f"case file {path} is not a case: {error}") from None
    except msgspec.DecodeError as error:
        raise CorpusError(f"case file {path} is corrupt: {error}") from None
    if saved.schema != SCHEMA:
        raise CorpusError(f"case file {path} has schema {saved.schema!r}, expected {SCHEMA!r}")
    return saved


def read_corpus(folder: Path) -> list[Sourced]:
    """Read all cases below a folder, ordered by path.

    Raise CorpusError if it is no folder, holds no case, or holds one that cannot be read.
    """
    if not folder.is_dir():
        raise CorpusError(f"corpus {folder} is not a folder")
    paths = sorted(folder.rglob("*.json"))
    if not paths:
        raise CorpusError(f"corpus {folder} holds no case file (*.json)")
    return [
        Sourced(read_case(path).case, "corpus", str(path.relative_to(folder))) for path in paths
    ]
