"""Ends from outside: signals at any moment lose no result and leave no process.

`ATTNPROOF_ATTACK_REPEATS=50` tries that many moments of each kind.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time

import pytest

from tests.attacks.runs import LIMIT_S, ORPHAN_S, shell, verify

REPEATS = int(os.environ.get("ATTNPROOF_ATTACK_REPEATS", "0"))
LONGEST_END_S = 10.0
"""Seconds from Ctrl-C to the end; half of it where nothing else runs."""
RUN_S = 2.5
"""Length of a run of this candidate."""
OPERATIONS = "is_block_tables_empty,slice_query_start_locs,get_mla_dims,copy_blocks"
RIGHT = {"slice_query_start_locs", "copy_blocks", "get_mla_dims"}
CANDIDATE = """
import time
from attnproof.reference import copy_blocks, get_mla_dims, slice_query_start_locs as good
def is_block_tables_empty(block_tables):
    return 3
def slice_query_start_locs(*a, **k):
    time.sleep(0.02)
    return good(*a, **k)
"""


def moments(kind, usual):
    """Return times in a run as parameters: `usual` of them, or as many as are asked for."""
    generator = random.Random(kind)
    return [round(generator.uniform(0.0, RUN_S), 3) for _ in range(REPEATS or usual)]


@pytest.fixture(scope="session")
def earlier(tmp_path_factory):
    """A folder with the candidate and the report of a whole run."""
    folder = tmp_path_factory.mktemp("earlier")
    (folder / "mixed.py").write_text(CANDIDATE, encoding="utf-8")
    ended = verify(folder, "--candidate", "mixed.py", operations=OPERATIONS).end()
    ended.assert_orderly(1)
    return folder


@pytest.fixture
def started(earlier, tmp_path):
    """A run with an earlier report in its folder, and the bytes of that report."""
    folder = tmp_path / "run"
    shutil.copytree(earlier, folder)
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and a fork inherits
    run = verify(folder, "--seed", "2", "--candidate", "mixed.py", operations=OPERATIONS)
    signal.signal(signal.SIGHUP, before)
    return run, files(folder)


def files(folder):
    return {
        path.relative_to(folder / "o"): path.read_bytes()
        for path in (folder / "o").rglob("*")
        if path.is_file() and not path.relative_to(folder / "o").parts[0].startswith(".running")
    }


def ledgers(folder):
    """Return the ledgers of a run that has begun to judge cases."""
    return [path for path in (folder / "o").glob(".running*/**/*.jsonl") if path.stat().st_size]


def assert_verdicts(summary, unfinished):
    """Raise AssertionError for a wrong verdict, or more than some without one."""
    verdicts = {one["name"]: one["verdict"] for one in summary["operations"]}
    for name, verdict in verdicts.items():
        right = "PASS" if name in RIGHT else "FAIL"
        assert verdict in (right, "UNVERIFIED"), f"{name} is {verdict}"
    unknown = [name for name, verdict in verdicts.items() if verdict == "UNVERIFIED"]
    assert len(unknown) <= unfinished, unknown
    assert bool(summary["findings"]) == (verdicts["is_block_tables_empty"] == "FAIL")


@pytest.mark.parametrize("moment", moments("interrupt", 2))
def test_an_interrupt_ends_soon_and_keeps_what_was_found(moment, started):
    run, before = started
    time.sleep(moment)
    run.signal(signal.SIGINT)
    sent = time.monotonic()
    ended = run.end()
    print(f"ended after {time.monotonic() - sent:.2f} s with {ended.status}")
    assert time.monotonic() - sent < LONGEST_END_S
    ended.assert_orderly(1, 3)
    folder = ended.folder / "o"
    incomplete = folder / "incomplete" / "summary.json"
    if ended.summary["seed"] == 2:  # it had ended
        assert_verdicts(ended.summary, 0)
        return
    after = files(ended.folder)
    assert {name: after[name] for name in before} == before
    if incomplete.exists():
        assert_verdicts(json.loads(incomplete.read_text(encoding="utf-8")), len(RIGHT) + 1)
    else:
        assert "interrupted" in ended.err


def test_a_closed_terminal_is_an_interrupt(started, tmp_path):
    run, _ = started
    deadline = time.monotonic() + 20.0
    while not ledgers(tmp_path / "run") and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    run.signal(signal.SIGHUP)
    ended = run.end()
    ended.assert_orderly(1, 3)
    assert (ended.folder / "o" / "incomplete" / "summary.json").exists()


def test_an_interrupt_after_the_last_verdict_keeps_it(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    # The report names the commit: a slow `git` makes the time between verdict and report long.
    (tools / "git").write_text("#!/bin/sh\ntouch called\nsleep 2\n", encoding="utf-8")
    (tools / "git").chmod(0o755)
    (tmp_path / "wrong.py").write_text(CANDIDATE, encoding="utf-8")
    line = "$attnproof verify --examples 5 --steps 0 --no-remember --out o"
    line += " --ops is_block_tables_empty --candidate wrong.py"
    run = shell(f"PATH={tools}:$PATH; exec {line}", tmp_path)
    deadline = time.monotonic() + LIMIT_S
    while not (tmp_path / "called").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    run.signal(signal.SIGINT)
    time.sleep(0.1)
    run.signal(signal.SIGTERM)
    ended = run.end()
    ended.assert_orderly(1)
    ended.assert_report()


@pytest.mark.parametrize("moment", moments("main", 1))
def test_a_killed_run_leaves_the_earlier_report(moment, started):
    run, before = started
    time.sleep(moment)
    run.signal(signal.SIGKILL)
    ended = run.end()
    assert not ended.survivors, f"after {ORPHAN_S} s: {ended.survivors}"
    assert ended.status in (-signal.SIGKILL, 1)
    if ended.summary["seed"] == 2:
        ended.assert_report()
        assert_verdicts(ended.summary, 0)
    else:
        assert files(ended.folder) == before


@pytest.mark.parametrize(
    ("part", "moment"),
    [(part, t) for part in ("task", "launcher", "worker") for t in moments(part, 1)],
)
def test_a_killed_part_costs_one_operation(part, moment, started):
    run, _ = started
    time.sleep(moment)
    deadline = time.monotonic() + RUN_S
    victims = []
    while not victims and time.monotonic() < deadline:
        victims = run.tree()[part][:1]
    run.signal(signal.SIGKILL, *victims)
    ended = run.end()
    ended.assert_orderly(1, 3, 5)  # a task that dies is a fault of the harness
    assert ended.summary["seed"] == 2
    ended.assert_report()
    assert_verdicts(ended.summary, 1)


def test_what_a_killed_run_left_is_removed_by_the_next(started):
    run, _ = started
    deadline = time.monotonic() + LIMIT_S
    while not list((run.folder / "o").glob(".running-*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    run.signal(signal.SIGKILL)
    folder = run.end().folder
    assert list((folder / "o").glob(".running-*"))
    ended = verify(folder, "--candidate", "reference", operations="is_block_tables_empty").end()
    ended.assert_orderly(0)
    assert not list((folder / "o").glob(".running-*"))


def test_a_pause_of_all_processes_is_no_hang(tmp_path):
    run = verify(tmp_path, "--seconds", "2", "--candidate", "reference")
    time.sleep(1.5)
    everything = [pid for pids in run.tree().values() for pid in pids]
    run.signal(signal.SIGSTOP, *everything)
    time.sleep(3.0)
    run.signal(signal.SIGCONT, *reversed(everything))
    ended = run.end()
    ended.assert_orderly(0)
    assert ended.candidate("reference").verdict == "PASS"


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_what_happens_to_a_worker_once_is_no_finding(number, tmp_path):
    run = verify(tmp_path, "--seconds", "2", "--candidate", "reference")
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and not run.tree()["worker"]:
        time.sleep(0.05)
    time.sleep(0.7)
    run.signal(number, *run.tree()["worker"])
    ended = run.end()
    ended.assert_orderly(3)
    found = ended.candidate("reference")
    assert found.verdict == "UNVERIFIED"
    assert "once, not again" in found.text


# An earlier interrupt ends the interpreter while it starts.
@pytest.mark.parametrize("moment", [1.0 + t for t in moments("real", 1)])
def test_an_interrupt_of_the_real_command_line(moment, tmp_path):
    run = shell(
        "exec $attnproof verify --no-remember --steps 0 --out o --candidate reference", tmp_path
    )
    time.sleep(moment)
    run.signal(signal.SIGINT)
    sent = time.monotonic()
    ended = run.end()
    assert time.monotonic() - sent < LONGEST_END_S
    ended.assert_orderly(3)
