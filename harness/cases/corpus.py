"""Saved cases: `cases/<id>.json` of a run, and folders of them that a run goes through again."""

from __future__ import annotations

from pathlib import Path

import msgspec

from attnproof.harness.model.case import Case, Origin, Sourced

SCHEMA = "attnproof.case/1"


class CorpusError(ValueError):
    """A case file that cannot be read; the message is one line and names the file."""


class CaseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A case as it lies on disk, with what it once showed."""

    schema: str = SCHEMA
    case: Case
    origin: Origin = "corpus"
    source: str = ""
    candidate: str = ""
    """Name of the candidate that failed on it."""
    target: str = ""
    """Where that candidate was loaded from."""
    diagnosis: str = ""


def write_case(path: Path, saved: CaseFile) -> None:
    """Write one case file, readable by a person."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(saved), indent=1) + b"\n")


def read_case(path: Path) -> CaseFile:
    """The case in a file (CorpusError if it is not there, not JSON or not a case)."""
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
    """All cases under a folder, in order of their paths (CorpusError)."""
    if not folder.is_dir():
        raise CorpusError(f"corpus {folder} is not a folder")
    paths = sorted(folder.rglob("*.json"))
    if not paths:
        raise CorpusError(f"corpus {folder} holds no case file (*.json)")
    return [
        Sourced(read_case(path).case, "corpus", str(path.relative_to(folder))) for path in paths
    ]
