"""Closed, broken and narrow standard streams change neither the verdict nor a file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

VERIFY = "verify --ops is_block_tables_empty --examples 5 --steps 0 --jobs 1 --no-remember"
LIST = "list is_block_tables_empty"


def run(folder, line, shell="", **environment):
    """Run a command line by bash, with redirections; return the ended process."""
    command = f"{sys.executable} -m attnproof {line} {shell}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_neither_verdict_nor_files(closed, tmp_path):
    done = run(tmp_path, f"{VERIFY} --candidate reference --out out", closed)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert (tmp_path / "out/index.html").read_bytes().startswith(b"<!doctype html>")
    assert (tmp_path / "out/summary.md").read_bytes().startswith("## ✓".encode())
    assert done.stdout.endswith(b"index.html\n") or ">&-" in closed.split()


def test_a_usage_error_with_closed_streams_is_exit_code_2(tmp_path):
    assert run(tmp_path, "verify --ops zzz", ">&- 2>&-").returncode == 2
    assert run(tmp_path, "verify --zzz", ">&- 2>&-").returncode == 2


@pytest.mark.parametrize("line", [f"{VERIFY} --candidate reference --out out", LIST, "--help"])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_reader_that_is_gone_changes_nothing(line, stream, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    others = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | {stream: writer}
    command = [sys.executable, "-m", "attnproof", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, timeout=120, check=False, **others)
    os.close(writer)
    assert done.returncode == 0
    assert not done.stderr


def test_a_full_disk_below_the_output_is_no_success(tmp_path):
    done = run(tmp_path, LIST, "> /dev/full")
    assert done.returncode == 5
    assert done.stderr == b"attnproof: the output cannot be written: No space left on device\n"


LOCALES = [
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0"},
    {"TERM": "dumb", "NO_COLOR": "1"},
]


@pytest.mark.parametrize("environment", LOCALES, ids=lambda given: " ".join(given.values()))
def test_output_in_any_locale(environment, tmp_path):
    candidate = tmp_path / "größe ✓.py"
    candidate.write_text("def is_block_tables_empty(block_tables):\n    return '✓'\n", "utf-8")
    done = run(tmp_path, f"{VERIFY} --candidate *.py --out out", **environment)
    assert done.returncode == 1, done.stderr
    assert done.stderr == b""
    (replay,) = [one for one in done.stdout.splitlines() if b"attnproof replay" in one]
    again = run(tmp_path, replay.decode("latin-1" if False else "utf-8", "replace"), **environment)
    assert again.returncode in (1, 2)


@pytest.mark.parametrize("columns", ["1", "2", "20"])
@pytest.mark.parametrize("line", ["list", LIST, "--help"])
def test_a_narrow_terminal(columns, line, tmp_path):
    done = run(tmp_path, line, COLUMNS=columns)
    assert done.returncode == 0, done.stderr
    assert done.stdout
