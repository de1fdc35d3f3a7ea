"""The cases of a run in two files: a line for each verdict, and the cases themselves, compressed.

Both are made of the ledgers at the end of a run. A ledger is about ten times as large, because
it must have each case before the candidate gets it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import msgspec

RESULTS = "results.jsonl"
"""Name of the file with a line for each case of each candidate."""
CASES = "cases.jsonl.xz"
"""Name of the file with each case of the run, whichever candidates got it."""
_PRESET = 1
"""Preset of xz: the default takes ten times as long and saves a third."""


class _Line(msgspec.Struct, omit_defaults=True):
    """The verdict on a case, as a line of results.jsonl."""

    id: str
    operation: str
    candidate: str
    origin: str
    verdict: str
    """PASS, FAIL, DEVIATES; UNVERIFIED if the run ended before the candidate had returned."""
    source: str = ""
    failures: list[Any] = []
    known: list[Any] = []
    case: dict[str, msgspec.Raw] = {}
    """The whole case if it failed or is unverified."""


class _Event(msgspec.Struct):
    """A line of a ledger: a batch, a case, or a verdict."""

    event: str
    id: str = ""
    operation: str = ""
    candidate: str = ""
    origin: str = ""
    source: str = ""
    case: msgspec.Raw = msgspec.Raw()
    batch_id: str = ""
    batch: msgspec.Raw = msgspec.Raw()
    failures: list[Any] = []
    known: list[Any] = []


def write_results(ledgers: Iterable[Path], folder: Path) -> str:
    """Write both files; return a reason if the cases were not written, else "".

    They need the module lzma, which a Python that was built without liblzma lacks.
    """
    archived: set[tuple[str, str]] = set()
    with (folder / RESULTS).open("wb") as results, _open_archive(folder / CASES) as archive:
        for ledger in ledgers:
            for line in _copy_cases(ledger, archive, archived):
                results.write(msgspec.json.encode(line) + b"\n")
    return "" if (folder / CASES).exists() else f"{CASES} was not written: no module lzma"


def _open_archive(path: Path) -> IO[bytes]:
    try:
        import lzma
    except ModuleNotFoundError:
        return Path(os.devnull).open("wb")
    return lzma.open(path, "wb", preset=_PRESET)


def _copy_cases(ledger: Path, archive: IO[bytes], archived: set[tuple[str, str]]) -> list[_Line]:
    """Copy batches and cases that are not yet `archived`; return a line for each case."""
    lines: dict[str, _Line] = {}
    batches: dict[str, msgspec.Raw] = {}
    with ledger.open("rb") as file:
        for data in file:
            if not data.endswith(b"\n"):  # the task died while it wrote
                break
            event = msgspec.json.decode(data, type=_Event)
            if event.event == "verdict":
                _settle(lines[event.id], event)
                continue
            if event.event == "batch":
                batches[event.batch_id] = event.batch
            else:
                line = lines.setdefault(event.id, _line(event))
                line.case = _whole(event.case, batches)
            name = (event.event, event.id or event.batch_id)
            if name not in archived:
                archived.add(name)
                archive.write(data)
    return list(lines.values())


def _line(event: _Event) -> _Line:
    """Return the line of a case that has no verdict yet."""
    return _Line(
        id=event.id,
        operation=event.operation,
        candidate=event.candidate,
        origin=event.origin,
        verdict="UNVERIFIED",
        source=event.source,
    )


def _whole(encoded: msgspec.Raw, batches: dict[str, msgspec.Raw]) -> dict[str, msgspec.Raw]:
    """Return the fields of a case, with its batch in place of the batch's id."""
    case = msgspec.json.decode(encoded, type=dict[str, msgspec.Raw])
    if "batch_id" in case:
        case["batch"] = batches[msgspec.json.decode(case.pop("batch_id"))]
    return case


def _settle(line: _Line, event: _Event) -> None:
    """Add a verdict. A case may be judged again, as in a fresh process; all failures count."""
    line.failures += [failure for failure in event.failures if failure not in line.failures]
    line.known += [failure for failure in event.known if failure not in line.known]
    line.verdict = "FAIL" if line.failures else "DEVIATES" if line.known else "PASS"
    if not line.failures:
        line.case = {}
