"""Limits, streams, folders and other runs cause no finding on the reference."""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest

from attnproof.harness import cli
from tests.attacks.runs import QUICK, Run, shell, verify

VERIFY = "exec $attnproof verify --ops is_block_tables_empty --candidate reference " + " ".join(
    QUICK
)


def test_a_limit_of_address_space_is_named(tmp_path):
    ended = shell(f"ulimit -v 3000000; {VERIFY} --out o", tmp_path).end()
    ended.assert_orderly(0, 5)
    if ended.status == 5:
        assert len(ended.err.strip().splitlines()) == 1, ended.err


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_changes_no_verdict(closed, tmp_path):
    ended = shell(f"{VERIFY} --out o {closed}", tmp_path).end()
    ended.assert_orderly(0, 5)
    assert ended.candidate("reference").verdict == "PASS"


@pytest.mark.parametrize("own_proc", ["", "--mount-proc"])
@pytest.mark.parametrize("name", ["reference", "leaver.py"])
def test_another_namespace_of_processes_changes_no_verdict(name, own_proc, tmp_path):
    if subprocess.run(["unshare", "-pf", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to make a namespace")
    (tmp_path / "leaver.py").write_text(
        "import subprocess\n"
        "def is_block_tables_empty(block_tables):\n"
        "    subprocess.Popen(['sleep', '99'])\n"
        "    return not block_tables\n",
        encoding="utf-8",
    )
    line = VERIFY.replace("exec", f"exec unshare -pf {own_proc}").replace("reference", name)
    ended = shell(f"{line} --out o", tmp_path).end()
    ended.assert_orderly(0 if name == "reference" else 1)
    texts = {finding["diagnosis"] for finding in ended.summary["findings"]}
    assert ("leaves processes behind" in texts) == (name == "leaver.py")


def test_files_of_the_user_are_not_replaced(tmp_path):
    (tmp_path / "cases").mkdir()
    mine = [tmp_path / name for name in ("cases/mine.txt", "bench.json", "index.html")]
    for path in mine:
        path.write_text("mine", encoding="utf-8")
    ended = verify(tmp_path, "--candidate", "reference", "--out", ".").end()
    ended.assert_orderly(2)
    assert "name another folder" in ended.err
    assert all(path.read_text(encoding="utf-8") == "mine" for path in mine)


@pytest.mark.parametrize(
    "change",
    [
        {"fault": "no such fault"},
        {"params": {"no_such_parameter": 1}},
        {"batch": {"no_such_field": 1}},
    ],
    ids=["fault", "parameter", "batch"],
)
def test_a_remembered_case_of_another_version_is_dropped(change, tmp_path):
    (tmp_path / "wrong.py").write_text(
        "def is_block_tables_empty(block_tables): return 3", encoding="utf-8"
    )
    options = ("--remember", "--candidate", "wrong.py")
    verify(tmp_path, *options, operations="is_block_tables_empty").end().assert_orderly(1)
    saved = [path for path in (tmp_path / ".attnproof").rglob("*") if path.is_file()]
    assert saved
    changed = 0
    for path in saved:
        changed += rewrite(path, change)
    assert changed, saved
    (tmp_path / "wrong.py").write_text(
        "from attnproof.reference import is_block_tables_empty", encoding="utf-8"
    )
    ended = verify(tmp_path, *options, operations="is_block_tables_empty").end()
    ended.assert_orderly(0)
    assert "dropped a remembered case" in "".join(ended.summary["notes"])


def rewrite(path, change):
    """Change a saved case, if the file is one; return how many were changed."""
    try:
        found = json.loads(path.read_bytes())
        case = found.get("case", found)
        case["operation"]
    except (ValueError, KeyError, AttributeError, TypeError):
        return 0
    case.update(change)
    path.write_text(json.dumps(found), encoding="utf-8")
    return 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "o").write_text("a file", encoding="utf-8")
    ended = verify(tmp_path, "--candidate", "reference").end()
    ended.assert_orderly(2)
    assert "cannot be written" in ended.err
    ended = verify(tmp_path, "--candidate", "reference", "--out", "/proc/o").end()
    ended.assert_orderly(2)
    assert "cannot be written" in ended.err


@pytest.fixture
def full_disk(tmp_path):
    """A folder `o` on a disk of 64 KiB."""
    folder = tmp_path / "o"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named(full_disk):
    ended = verify(full_disk, "--candidate", "reference").end()
    ended.assert_orderly(5)
    assert "No space left" in ended.err


def test_a_disk_that_becomes_full_is_named(full_disk):
    ended = verify(full_disk, "--candidate", "reference", operations="build_slot_mapping").end()
    ended.assert_orderly(5)
    assert "the ledger cannot be written: No space left" in ended.out


def test_two_runs_do_not_share_a_folder(tmp_path):
    first = verify(tmp_path, "--seconds", "2", "--candidate", "reference")
    time.sleep(1.0)
    second = verify(tmp_path, "--candidate", "reference")
    refused = second.end(beside=first)
    refused.assert_orderly(2)
    assert "in use by another run" in refused.err
    first.end().assert_orderly(0)


LONG = "a" * 300
"""A name longer than a file system allows."""


@pytest.mark.parametrize(
    "options",
    [
        ("--corpus", LONG),
        ("--out", LONG),
        ("--candidate", f"{LONG}.py"),
        ("--candidate", f"./{LONG}"),
        ("--steps", "1", "--trace", LONG),
        ("--deviations", LONG),
    ],
    ids=["corpus", "out", "candidate", "folder", "trace", "deviations"],
)
def test_a_name_that_is_too_long_is_named(options, tmp_path):
    ended = verify(tmp_path, "--candidate", "reference", *options).end()
    ended.assert_orderly(2)
    assert len(ended.err.strip().splitlines()) == 1, ended.err


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("option", ["--trace", "--deviations", "--candidate"])
def test_only_regular_files_are_read(option, kind, tmp_path):
    path = tmp_path / "given.py"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    run = verify(tmp_path, "--candidate", "reference", "--steps", "1", option, "given.py")
    ended = run.end(20.0)
    ended.assert_orderly(2)
    assert "not a regular file" in ended.err


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_remembered_case_that_is_no_file_is_not_read(kind, tmp_path):
    (tmp_path / "wrong.py").write_text(
        "def is_block_tables_empty(block_tables): return 3", encoding="utf-8"
    )
    options = ("--remember", "--candidate", "wrong.py")
    verify(tmp_path, *options, operations="is_block_tables_empty").end().assert_orderly(1)
    for path in [path for path in (tmp_path / ".attnproof").rglob("*") if path.is_file()]:
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
    ended = verify(tmp_path, *options, operations="is_block_tables_empty").end(30.0)
    ended.assert_orderly(1)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--deviations", "a=" + "[" * 100_000),
        ("--deviations", "a=" + "9" * 100_000),
        ("--trace", '{"a":' * 100_000 + "\n"),
    ],
    ids=["TOML", "digits", "JSON lines"],
)
def test_a_file_of_extremes_is_refused_in_one_line(option, text, tmp_path):
    (tmp_path / "given").write_text(text, encoding="utf-8")
    ended = verify(tmp_path, "--candidate", "reference", "--steps", "1", option, "given").end()
    ended.assert_orderly(2)
    assert len(ended.err.strip().splitlines()) == 1, ended.err


ENTRY = """
[[deviation]]
id = "x"
title = "t"
operations = ["is_block_tables_empty"]
versions = "*"
reference = "r"
since = 2025-01-01
when = "{}"
"""


@pytest.mark.parametrize(
    ("when", "status"),
    [
        ("-" * 9000 + "1", 2),
        ("len(list(accumulate([[0]*99999]*99999)))", 3),
        ("any([max(range(1000000)) < 0 for i in range(1000000)])", 3),
    ],
    ids=["nested", "squared", "endless"],
)
def test_a_condition_of_extremes_ends_soon(when, status, tmp_path):
    (tmp_path / "known.toml").write_text(ENTRY.format(when), encoding="utf-8")
    (tmp_path / "wrong.py").write_text(
        "def is_block_tables_empty(block_tables): return 3", encoding="utf-8"
    )
    options = ("--candidate", "wrong.py", "--deviations", "known.toml")
    verify(tmp_path, *options, operations="is_block_tables_empty").end().assert_orderly(status)


def test_a_removed_folder_is_named(tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()

    def call():
        folder.rmdir()
        cli.main()

    ended = Run(call, folder).end()
    ended.assert_orderly(5)
    assert ended.err == "attnproof: there is no current folder: No such file or directory\n"


def test_cases_without_a_report_are_not_replaced(tmp_path):
    mine = tmp_path / "o" / "cases" / "15135ca62dfb.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    ended = verify(tmp_path, "--candidate", "reference").end()
    ended.assert_orderly(2)
    assert "name another folder" in ended.err
    assert mine.read_text(encoding="utf-8") == "mine"


def test_a_folder_with_the_name_of_a_scratch_folder_is_kept(tmp_path):
    mine = tmp_path / "o" / ".running-notes" / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine", encoding="utf-8")
    ended = verify(tmp_path, "--candidate", "reference", operations="is_block_tables_empty").end()
    ended.assert_orderly(0)
    assert mine.read_text(encoding="utf-8") == "mine"
