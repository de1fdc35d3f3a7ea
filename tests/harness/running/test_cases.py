"""Cases from files, folders, standard input, ledgers and databases: loaded whole, or refused."""

from __future__ import annotations

import io
import lzma
import os
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis.database import DirectoryBasedExampleDatabase

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case, Sourced, encode
from attnproof.harness.model.inline_case import inline_case
from attnproof.harness.running import cases
from attnproof.harness.running.cases import (
    CaseError,
    CaseFile,
    find_case,
    read_case,
    read_corpus,
    remembered_case,
    write_case,
)
from attnproof.harness.running.results import CASES, write_results
from attnproof.harness.running.task.deviations import Explained
from attnproof.harness.running.task.ledger import Ledger

CASE = Case("get_kv_cache_layout", None, {"environment": "HND"})
LARGE = Case(
    "split_decodes_and_prefills",
    make_batch([1] * 900, [9] * 900, 4),
    {"decode_threshold": 1, "require_uniform": False},
)


def saved(**fields):
    return msgspec.json.encode(msgspec.structs.replace(CaseFile(case=CASE), **fields))


def nested(depth):
    return b"[" * depth + b"]" * depth


REFUSED = {
    "cut off": (saved()[:-3], "is corrupt: Input data was truncated"),
    "empty": (b"", "is corrupt: Input data was truncated"),
    "not UTF-8": (saved().replace(b"HND", b"H\xffD"), "is corrupt: "),
    "nested": (saved().replace(b'"HND"', nested(10**5)), "is corrupt: nested too deeply"),
    "list": (b"[1]", "is not a case: Expected `object`, got `array`"),
    "unknown field": (saved()[:-1] + b',"x":1}', "is not a case: Object contains unknown field"),
    "schema": (saved(schema="other/2"), "has schema 'other/2', expected 'attnproof.case/1'"),
    "operation": (
        saved(case=msgspec.structs.replace(CASE, operation="os.system")),
        ": no operation 'os.system'",
    ),
    "huge number": (saved().replace(b'"HND"', b"9" * 10**5), ""),
    "infinite": (saved().replace(b'"HND"', b"1e999"), ""),
    "parameter": (
        saved().replace(b"HND", b"nhd"),
        ": params of get_kv_cache_layout: Invalid enum value 'nhd' - at `$.environment`",
    ),
}


@pytest.mark.parametrize(("data", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_no_case_is_refused_in_a_sentence(tmp_path, monkeypatch, data, reason):
    path = tmp_path / "case.json"
    path.write_bytes(data)
    space = "" if reason.startswith(":") else " "
    for load in (read_case, lambda path: read_corpus(path.parent)):
        with pytest.raises(CaseError) as refused:
            load(path)
        assert str(refused.value).startswith(f"case file {path}{space}{reason}")
        assert "\n" not in str(refused.value)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    with pytest.raises(CaseError, match="standard input"):
        read_case("-")


def test_only_regular_files_of_bounded_size_are_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "loop.json").symlink_to("loop.json")
    for name in ("/dev/zero", tmp_path / "fifo.json"):
        with pytest.raises(CaseError, match="not a regular file"):
            read_case(name)
    with pytest.raises(CaseError, match="cannot be read: Is a directory"):
        read_case(tmp_path)
    with pytest.raises(CaseError, match="Too many levels of symbolic links"):
        find_case(str(tmp_path / "loop.json"), tmp_path)
    with pytest.raises(CaseError, match="cannot be read: No such file"):
        read_case(tmp_path / "none.json")
    with pytest.raises(CaseError, match="cannot be read: embedded null byte"):
        find_case("a\0.json", tmp_path)
    monkeypatch.setattr(cases, "MOST_BYTES", 10)
    write_case(tmp_path / "case.json", CaseFile(case=CASE))
    with pytest.raises(CaseError, match="larger than 10 bytes"):
        read_case(tmp_path / "case.json")


def test_a_case_is_read_from_a_file_a_folder_and_standard_input(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "case.json"
    path.parent.mkdir()
    write_case(path, CaseFile(case=LARGE, candidate="mine"))
    assert read_case(path).candidate == "mine"
    assert read_corpus(tmp_path) == [Sourced(LARGE, "corpus", "deep/case.json")]
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    assert find_case("-", tmp_path).case == LARGE


def test_a_case_is_found_in_the_archive_of_a_run(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", "some", "mine")
    for case in (
        CASE,
        LARGE,
        msgspec.structs.replace(LARGE, params=LARGE.params | {"decode_threshold": 2}),
    ):
        ledger.announce(Sourced(case, "fuzz"))
        ledger.settle(case, Explained((), ()))
    ledger.close()
    assert write_results([tmp_path / "ledger.jsonl"], tmp_path) == ""
    assert find_case(CASE.id, tmp_path).case == CASE
    assert find_case(LARGE.id, tmp_path).case == LARGE
    with pytest.raises(CaseError, match="no case 'cut': not a file, and not a case of the run"):
        find_case("cut", tmp_path)
    path = tmp_path / CASES
    lines = lzma.decompress(path.read_bytes()).splitlines(keepends=True)
    without = b"".join(line for line in lines if b'"event":"batch"' not in line)
    path.write_bytes(lzma.compress(without))
    with pytest.raises(CaseError, match="refers to a batch that is not in the file"):
        find_case(LARGE.id, tmp_path)
    path.write_bytes(lzma.compress(b"".join(lines).replace(b"decode_threshold", b"threshold")))
    with pytest.raises(CaseError, match=f"case {LARGE.id} of .*unknown field `threshold`"):
        find_case(LARGE.id, tmp_path)


@pytest.mark.parametrize("data", [b"", b"no xz", lzma.compress(b"x" * 1000)[:-20]])
def test_an_archive_that_is_damaged_is_refused(tmp_path, data):
    (tmp_path / CASES).write_bytes(data)
    with pytest.raises(CaseError, match=f"{CASES} cannot be read: "):
        find_case(CASE.id, tmp_path)


def test_a_remembered_case_without_a_meaning_is_dropped_with_a_note(examine_candidate, tmp_path):
    folder = tmp_path / "examples"
    database = DirectoryBasedExampleDatabase(folder)
    key = b"attnproof/get_kv_cache_layout/attnproof.reference/cpu"
    old = msgspec.structs.replace(CASE, params={"variable": "HND"})
    for data in (encode(old), b"no JSON", encode(CASE)):
        database.save(key, data)
    chosen = {"examples": 1, "examples_db": str(folder)}
    outcome = examine_candidate("attnproof.reference", "get_kv_cache_layout", **chosen)
    assert outcome.result.verdict == "PASS"
    name = "get_kv_cache_layout [attnproof.reference]: dropped a remembered case"
    assert [note.startswith(name) for note in outcome.notes] == [True, True]
    assert list(database.fetch(key)) == []  # the third one passes now


def test_bytes_of_another_version_are_refused():
    with pytest.raises(CaseError, match="remembered case is corrupt"):
        remembered_case(b"no JSON")
    with pytest.raises(CaseError, match="remembered case: params of get_kv_cache_layout: "):
        remembered_case(encode(msgspec.structs.replace(CASE, params={"variable": "HND"})))
    assert remembered_case(encode(CASE)) == CASE


@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "See this:\n```json\n{}\n```\nIt fails {{here}}.\n",
        "> printf %s '{}' | attnproof replay - --candidate my.py\n",
        "é {} \u202e",
    ],
)
@pytest.mark.parametrize("case", [CASE, LARGE], ids=["small", "large"])
def test_an_inline_case_is_found_in_a_comment(around, case, monkeypatch):
    text = around.format(inline_case(case))
    stream = SimpleNamespace(buffer=io.BytesIO(text.encode()))
    monkeypatch.setattr("sys.stdin", stream)
    assert read_case("-").case == case


def test_a_saved_case_is_found_in_a_comment(tmp_path, monkeypatch):
    write_case(tmp_path / "a.json", CaseFile(case=CASE, diagnosis="a mistake"))
    data = b"Fails:\n```\n" + (tmp_path / "a.json").read_bytes() + b"```\n"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    assert read_case("-") == CaseFile(case=CASE, diagnosis="a mistake")


def test_an_inline_case_is_one_line_that_no_ci_system_obeys():
    hostile = Case("get_kv_cache_layout", None, {"environment": "a\n::error::b ##[x] \xa0\u202e"})
    text = inline_case(hostile)
    assert text.isascii()
    assert text.isprintable()
    assert "::" not in text
    assert "##" not in text
    assert msgspec.json.decode(text, type=CaseFile).case == hostile


def test_a_broken_case_in_a_comment_is_refused(monkeypatch):
    text = f"See this: {inline_case(CASE)[:-3]}"
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    with pytest.raises(CaseError, match="standard input is corrupt: Input data was truncated"):
        read_case("-")
