"""The output folder of a run: no file in it is replaced before the run has ended."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from attnproof.harness.escaping import escape_tree
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.files import read_regular
from attnproof.harness.model.run import Run
from attnproof.harness.oracles import CONTRACTS
from attnproof.harness.phases import Phase, counted
from attnproof.harness.report import write_report
from attnproof.harness.running.cases import CaseFile, write_case
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.running.results import CASES, RESULTS, write_results
from attnproof.harness.verbs.messages import complain

CODE_QUALITY = "gl-code-quality-report.json"
"""File of `--ci gitlab`."""
_OURS = (
    *("summary.json", "index.html", "junit.xml", "summary.md", "bench.json", RESULTS, CASES),
    *("results.sarif", CODE_QUALITY, "cases"),
)
_CASE = re.compile(r"[0-9a-f]{12}\.(json|py)")
"""Names of the files in `cases`."""
_SCRATCH = ".running-"
_MARK = "attnproof"
"""File of a scratch folder: a folder without it is somebody else's."""


class Output:
    """The folder `--out`: a scratch folder inside it during the run, the report at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            foreign = next(_foreign_files(folder), None)
            if foreign is not None:
                raise UsageError(
                    f"--out {folder} has files that the report would replace and attnproof did "
                    f"not write, such as {foreign}; name another folder"
                )
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            _lock(self._lock, folder)
            for leftover in folder.glob(f"{_SCRATCH}*"):
                if (leftover / _MARK).exists():
                    shutil.rmtree(leftover, ignore_errors=True)
            self.scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder))
            (self.scratch / _MARK).touch()
        except OSError as error:
            raise UsageError(
                f"--out {folder} cannot be written: {error.strerror}; name another folder"
            ) from None

    @counted(Phase.REPORT)
    def finish(self, run: Run, candidates: list[Candidate]) -> Path:
        """Write the report, move it to its place, and return that folder.

        An interrupted run does not replace an earlier report: it goes to `incomplete/`. Raise
        InfrastructureError if a file cannot be written.
        """
        interrupted = bool(run.settings.get("interrupted"))
        place = self.folder
        if interrupted and (self.folder / "summary.json").exists():
            place = self.folder / "incomplete"
        try:
            self._write(run, candidates)
            place.mkdir(exist_ok=True)
            for name in _OURS:
                _replace(self.scratch / name, place / name)
        except OSError as error:
            raise InfrastructureError(
                f"the report could not be written to {place}: {error.strerror}; "
                f"its files so far are in {self.scratch}"
            ) from None
        self.discard()
        return place

    def discard(self) -> None:
        """Remove the scratch folder, and let other runs use the output folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        os.close(self._lock)

    def _write(self, run: Run, candidates: list[Candidate]) -> None:
        targets = {candidate.name: candidate.target for candidate in candidates}
        cases = self.scratch / "cases"
        cases.mkdir()
        shown = [deviation.shown for deviation in run.deviations if deviation.shown]
        for finding in [*shown, *run.advice, *run.findings]:
            saved = CaseFile(
                case=finding.case,
                origin=finding.origin,
                source=finding.source,
                candidate=finding.candidate,
                target=_text(targets.get(finding.candidate, "")),
                diagnosis=finding.diagnosis,
            )
            write_case(cases / f"{finding.case_id}.json", saved)
            if finding.snippet:
                text = finding.snippet.encode(errors="backslashreplace")
                (cases / f"{finding.case_id}.py").write_bytes(text)
        unwritten = write_results(sorted(self.scratch.glob("ledger-*.jsonl")), self.scratch)
        if unwritten:
            complain(unwritten)
        if run.bench is not None:
            samples = msgspec.json.format(
                msgspec.json.encode(escape_tree(msgspec.to_builtins(run.bench))), indent=0
            )
            (self.scratch / "bench.json").write_bytes(samples)
        for reason in write_report(run, self.scratch, oracles=CONTRACTS):
            complain(reason)


def _lock(descriptor: int, folder: Path) -> None:
    """Keep other runs out of the folder as long as the descriptor is open (UsageError)."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"--out {folder} is in use by another run; wait for it, or name another folder"
        ) from None
    except OSError:  # a file system without locks
        return


def _text(path: str) -> str:
    """Return the path as text: JSON holds no bytes that are not UTF-8."""
    return path.encode("utf-8", "backslashreplace").decode()


def _foreign_files(folder: Path) -> Iterator[Path]:
    """Yield files with names of a report's that are not part of an earlier report."""
    for place in (folder, folder / "incomplete"):
        written = _is_report(place / "summary.json")
        for name in _OURS:
            path = place / name
            if path.is_dir() and not path.is_symlink():
                for file in path.iterdir():
                    if not (written and _CASE.fullmatch(file.name)):
                        yield file
            elif path.exists() and not written:
                yield path


def _is_report(summary: Path) -> bool:
    """True if the file is the summary of a run."""
    try:
        return b'"attnproof.summary/' in read_regular(summary)[:1000]
    except OSError:
        return False


def _replace(new: Path, old: Path) -> None:
    """Replace `old` by `new`, or remove `old` if there is no `new`."""
    if old.is_dir():
        # os.replace cannot replace a folder that has files in it.
        aside = new.with_name(f"{old.name}.old")
        os.replace(old, aside)  # noqa: PTH105
    if new.exists():
        os.replace(new, old)  # noqa: PTH105
    else:
        old.unlink(missing_ok=True)
