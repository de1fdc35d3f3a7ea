"""Files that a run reads may be anything: each reader refuses them in one line, at once."""

from __future__ import annotations

import lzma
import os
import resource
import zlib
from pathlib import Path

import pytest

from attnproof.harness.campaign.ledger import read_ledger
from attnproof.harness.cases.traces.reading import TraceError, read_trace
from attnproof.harness.model.files import (
    MOST_BYTES,
    DamagedError,
    is_of_another,
    read_json,
    read_regular,
)
from attnproof.harness.report.shared.comparison import read_run
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.cases import CaseError, find_case, read_case
from attnproof.harness.running.errors import AttnproofError
from attnproof.harness.running.results import CASES
from attnproof.harness.running.task.deviations import load
from attnproof.harness.strength.files import read_strength
from attnproof.harness.timing.analysis.baseline import BaselineError
from attnproof.harness.timing.analysis.baseline import load as load_baseline
from attnproof.harness.verbs.draft import draft
from attnproof.harness.verbs.mutants import _ids
from attnproof.harness.verbs.output import Output

READERS = {
    "baseline": load_baseline,
    "candidate": lambda path: resolve([str(path)], "cpu"),
    "case": read_case,
    "deviations": lambda path: load(str(path), "1.0"),
    "draft": draft,
    "ids of mutants": _ids,
    "ledger": read_ledger,
    "run": read_run,
    "strength": lambda path: read_strength([path]),
    "trace": read_trace,
}
ERRORS = (AttnproofError, CaseError, TraceError, BaselineError)
CONTENTS = {
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000,
    "deep expression": b"x = " + b"-" * 100_000 + b"1",
    "no UTF-8": b'{"schema":"\xff"}',
    "null characters": b"\0" * 1000,
    "digits": b'{"schema":' + b"9" * 100_000 + b"}",
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("make", [fifo, endless, loop, huge, Path.mkdir])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_only_regular_files_of_bounded_size_are_read(read, make, tmp_path):
    path = tmp_path / "given.py"
    make(path)
    with pytest.raises(ERRORS) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_says_no_size_is_read_to_its_limit():
    with pytest.raises(OSError, match="larger than 10 bytes"):
        read_regular("/proc/self/maps", 10)


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_damaged_files_are_refused_in_one_line(read, content, tmp_path):
    path = tmp_path / "given.py"
    path.write_bytes(content + b"\n")
    if read is _ids and content not in (CONTENTS["no UTF-8"],):
        return  # any text is a list of ids
    with pytest.raises(ERRORS) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_json_of_extremes_is_damaged(content, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(DamagedError):
        read_json(tmp_path / "a", dict[str, str])


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_damaged_file_of_strength_is_a_note(content, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("mutants/mutants.json", "strength/strength.json"):
        path = tmp_path / "reports" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert len(read_strength([])[1]) == 2


@pytest.mark.parametrize("make", [fifo, endless])
def test_a_summary_that_is_no_file_is_not_replaced(make, tmp_path):
    make(tmp_path / "summary.json")
    with pytest.raises(AttnproofError, match="did not write, such as"):
        Output(tmp_path)


@pytest.mark.parametrize(
    "source",
    [
        b"\xef\xbb\xbfx = 1\n",
        b"# -*- coding: latin-1 -*-\nx = '\xe9'\n",
        b"#!/usr/bin/python\n# vim: set fileencoding=cp1252 :\nx = '\x80'\n",
    ],
    ids=["byte order mark", "latin-1", "second line"],
)
def test_a_source_is_read_as_python_reads_it(source, tmp_path):
    (tmp_path / "own.py").write_bytes(source)
    assert resolve([str(tmp_path / "own.py")], "cpu")[0].name == "own"


def test_an_archive_of_any_size_takes_the_memory_of_a_line(tmp_path):
    line = b'{"event":"batch","batch_id":"b%d","batch":{"x":' + b" " * (1 << 20) + b"1}}\n"
    with lzma.open(tmp_path / CASES, "wb", preset=0) as file:
        for number in range(500):
            file.write(line % number)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CaseError, match="not a case of the run"):
        find_case("0123456789ab", tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (100 << 10)


def test_an_archive_that_asks_for_much_memory_is_refused(tmp_path):
    data = bytearray(lzma.compress(b'{"event":"case"}\n'))
    size = 4 * (data[12] + 1)  # of the block's header, after the stream's
    data[16] = 40  # a dictionary of 4 GiB
    data[12 + size - 4 : 12 + size] = zlib.crc32(data[12 : 12 + size - 4]).to_bytes(4, "little")
    (tmp_path / CASES).write_bytes(data)
    with pytest.raises(CaseError, match="cannot be read: Memory usage limit exceeded"):
        find_case("0123456789ab", tmp_path)


def test_what_is_no_report_is_of_another(tmp_path):
    own, other, large, empty = (tmp_path / name for name in ("own", "other", "large", "empty"))
    own.write_text("<!-- mark -->\n", encoding="utf-8")
    other.write_text("notes", encoding="utf-8")
    with large.open("wb") as file:  # larger than any file that is read whole
        file.write(b"mark")
        file.truncate(MOST_BYTES + 2)
    empty.touch()
    os.mkfifo(tmp_path / "pipe")
    wanted = {"own": False, "other": True, "large": False, "empty": False, "none": False}
    wanted |= {"pipe": True, ".": True}
    assert {name: is_of_another(tmp_path / name, "mark") for name in wanted} == wanted
