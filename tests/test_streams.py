"""Closed, broken and narrow standard streams change neither the verdict nor a file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

VERIFY = "verify --ops is_block_tables_empty --examples 5 --steps 0 --jobs 1 --no-remember"
CLOSED = [">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"]
WRITES = """
import os, sys
from attnproof.harness.streams import output_problem, prepare_streams
prepare_streams()
kept = open("file", "w")
print("\\u2713 \\ud800", flush=True)
print("error", file=sys.stderr, flush=True)
os.system("echo child; echo child >&2")
kept.write(f"{kept.fileno() > 2} {sys.stdin is not None} {output_problem()!r}")
"""


def shell(folder, command, **environment):
    """Run a command line of bash, and return the ended process."""
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        timeout=120,
        check=False,
    )


def run(folder, line, redirection="", **environment):
    return shell(folder, f"{sys.executable} -m attnproof {line} {redirection}", **environment)


@pytest.mark.parametrize("closed", CLOSED)
def test_a_file_never_gets_the_descriptor_of_a_closed_stream(closed, tmp_path):
    (tmp_path / "writes.py").write_text(WRITES)
    done = shell(tmp_path, f"{sys.executable} writes.py {closed}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_text() == "True True ''"
    words = closed.split()
    assert done.stdout == (b"" if ">&-" in words else "✓ \\ud800\nchild\n".encode())
    assert done.stderr == (b"" if "2>&-" in words else b"error\nchild\n")


@pytest.mark.parametrize("redirection", ["| true", "2>&1 | true", "2> >(true)"])
def test_a_reader_that_is_gone_is_no_error(redirection, tmp_path):
    (tmp_path / "writes.py").write_text(f"import time; time.sleep(0.3)\n{WRITES}")
    command = f"set -o pipefail; {sys.executable} writes.py {redirection}"
    done = shell(tmp_path, command)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert (tmp_path / "file").read_text() == "True True ''"


def test_a_full_disk_is_reported(tmp_path):
    (tmp_path / "writes.py").write_text(WRITES)
    assert shell(tmp_path, f"{sys.executable} writes.py > /dev/full").returncode == 0
    assert (tmp_path / "file").read_text() == "True True 'No space left on device'"
    done = run(tmp_path, "--help", "> /dev/full")
    assert done.returncode == 5
    assert done.stderr == b"attnproof: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp437"])
def test_what_an_encoding_lacks_is_escaped(encoding, tmp_path):
    (tmp_path / "writes.py").write_text(WRITES)
    done = shell(tmp_path, f"{sys.executable} writes.py", PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    shown = "✓ \\ud800\nchild\n".encode(encoding, "backslashreplace")
    assert done.stdout == shown


@pytest.mark.parametrize("line", ["verify --zzz", "frobnicate"])
@pytest.mark.parametrize("closed", ["", *CLOSED])
def test_a_usage_error_is_exit_code_2_on_any_streams(line, closed, tmp_path):
    assert run(tmp_path, line, closed).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("closed", CLOSED)
def test_a_verdict_does_not_depend_on_the_streams(closed, tmp_path):
    done = run(tmp_path, f"{VERIFY} --candidate reference --out out", closed)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    assert (tmp_path / "out/index.html").read_bytes().startswith(b"<!doctype html>")
    assert (tmp_path / "out/summary.md").read_bytes().startswith("## ✓".encode())


@pytest.mark.slow
@pytest.mark.parametrize("redirection", ["| true", "2>&1 | head -1"])
def test_a_verdict_does_not_depend_on_the_reader(redirection, tmp_path):
    (tmp_path / "wrong.py").write_text("def is_block_tables_empty(tables):\n    return 7\n")
    line = f"{VERIFY} --candidate wrong.py --out out {redirection}"
    done = shell(tmp_path, f"set -o pipefail; {sys.executable} -m attnproof {line}")
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "out/index.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "1"},
    ],
    ids=lambda given: " ".join(given.values()),
)
def test_output_in_any_locale(environment, tmp_path):
    (tmp_path / "größe '✓'.py").write_text("def is_block_tables_empty(tables):\n    return '✓'\n")
    done = run(tmp_path, f"{VERIFY} --candidate *.py --out out", **environment)
    assert done.returncode == 1, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"\x1b" not in done.stdout
    replay = next(one for one in done.stdout.splitlines() if b"attnproof replay" in one)
    if "PYTHONIOENCODING" in environment:  # the command has the letters that ASCII lacks
        return
    again = run(tmp_path, replay.decode().split("attnproof", 1)[1], **environment)
    assert again.returncode == 1, again.stderr
    assert b"FAIL is_block_tables_empty" in again.stdout


@pytest.mark.slow
@pytest.mark.parametrize("line", ["list", "--help"])
def test_a_narrow_terminal(line, tmp_path):
    done = run(tmp_path, line, COLUMNS="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout
