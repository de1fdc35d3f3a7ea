"""Attacks that broke an earlier version, read where they are kept.

`ATTNPROOF_ATTACKS` is their folder, by default `../shared/attacks` beside the checkout.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.attacks.attack import FAIL, PASS
from tests.attacks.runs import command, verify

CHECKOUT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("ATTNPROOF_ATTACKS", CHECKOUT.parent / "shared" / "attacks"))
SLOTS, TABLES = "build_slot_mapping", "compute_slot_mapping"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no attacks at {FOLDER}")
TODAY = (
    ("from reference", "from attnproof.reference"),
    ("import reference", "import attnproof.reference"),
    ("from harness.running.task import", "from attnproof.harness.running.task.task import"),
    ("from harness.", "from attnproof.harness."),
    (
        "import harness.running.worker as w",
        "from attnproof.harness.running.processes.channel import Channel as w",
    ),
    ("w._send", "w.send"),
    # That is above the limit too, and is sooner filled.
    ("800<<20", "300<<20"),
    # Replies come from the process that was started: the attacker claims to be it.
    ("send(c,reply)", "c._pid=os.getpid(); send(c,reply)"),
)


class Recorded(NamedTuple):
    """A recorded candidate: the promise that it attacks, and the ending it must have."""

    name: str
    promise: str
    verdict: str
    words: str = ""


_FRAMES = "only a reply is taken for a reply"
_WRONG = "a wrong answer is FAIL, whatever its type"
_MEMORY = "a candidate and its children get --memory and no more"
_LEFT = "no process survives a run"
_KEPT = "findings already made are kept"
GROUPS = {
    "frames": (
        Recorded("partialframe", _FRAMES, FAIL, "writes to the channel"),
        Recorded("mainpartial", _FRAMES, FAIL, "writes to the channel"),
        Recorded("mainforge", _FRAMES, FAIL, "writes to the channel"),
        Recorded("mainframe", _FRAMES, FAIL, "writes to the channel"),
        Recorded("garbageframe", _FRAMES, FAIL, "writes to the channel"),
        Recorded("oneextra", _FRAMES, FAIL),
        Recorded("shift_fork2", _FRAMES, FAIL),
    ),
    "answers": (
        *(Recorded(n, _WRONG, FAIL, "tensor") for n in ("meta", "sparse", "hugeexpand")),
        Recorded("quant", _WRONG, FAIL),
    ),
    "errors": (Recorded("evilexc", _WRONG, FAIL, "E: a E whose text cannot be made"),),
    "ends": (
        Recorded("child_left", _LEFT, FAIL, "leaves processes behind"),
        Recorded("rewriter", _LEFT, FAIL),
        Recorded("importlimit", _KEPT, FAIL, "no more seats"),
        Recorded("rtsig", _KEPT, FAIL, "signal 40"),
    ),
    "hangs": (Recorded("cpuloop40", "a hang is a finding", FAIL, "does not answer within"),),
    "memory": (
        Recorded("childmem", _MEMORY, FAIL, "memory"),
        # 4 MiB a call is less than a case may write, and is dropped after each case.
        Recorded("stderr_flood1", "output takes little memory", PASS),
    ),
}
OPTIONS = {
    # Every fortieth call of a process burns a time limit.
    "hangs": ("--examples", "5", "--timeout", "1"),
    "memory": ("--memory", "0.5", "--examples", "5"),
}


def adapted(name, folder):
    """Write the candidate with today's names of modules; return its file."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    for old, new in TODAY:
        source = source.replace(old, new)
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    return f"{name}.py"


@pytest.mark.parametrize("group", GROUPS)
def test_every_recorded_candidate_gets_its_verdict(group, tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL_OUT", str(tmp_path / "o"))
    files = [adapted(one.name, tmp_path) for one in GROUPS[group]]
    chosen = [word for file in files for word in ("--candidate", file)]
    ended = verify(tmp_path, *chosen, *OPTIONS.get(group, ()), operations=SLOTS).end()
    ended.assert_orderly(1)
    ended.assert_report()
    before = (tmp_path / "o" / "summary.json").read_bytes()
    for one in GROUPS[group]:
        found = ended.candidate(one.name)
        assert found.verdict == one.verdict, f"{one.promise}: {one.name}: {found.text}"
        assert one.words in found.text, f"{one.promise}: {one.name}: {found.text}"
        assert bool(found.findings) == (one.verdict == FAIL)
    time.sleep(0.5)  # a child that is alive would rewrite it now
    assert (tmp_path / "o" / "summary.json").read_bytes() == before


def test_wrong_integers_beyond_64_bits_are_found(tmp_path):
    ended = verify(tmp_path, "--candidate", adapted("l_big", tmp_path), operations=TABLES).end()
    ended.assert_orderly(1)
    assert ended.candidate("l_big").verdict == FAIL


def test_a_hang_on_one_shape_is_complete_in_time(tmp_path):
    run = verify(tmp_path, "--candidate", adapted("hangs_on_one_shape", tmp_path))
    ended = run.end()
    ended.assert_orderly(1)
    assert "does not answer within" in ended.candidate("hangs_on_one_shape").text


def test_memory_of_an_import_is_limited(tmp_path):
    file = adapted("memhog_import", tmp_path)
    ended = verify(tmp_path, "--memory", "1", "--candidate", file, operations=SLOTS).end()
    ended.assert_orderly(2)
    assert "cannot be imported" in ended.err


def test_an_import_that_is_interrupted_ends(tmp_path):
    run = verify(tmp_path, "--candidate", adapted("cpuimport", tmp_path))
    time.sleep(1.5)
    run.signal(2)
    begun = time.monotonic()
    ended = run.end()
    ended.assert_orderly(3)
    assert time.monotonic() - begun < 10


def test_a_task_that_is_killed_takes_its_worker_with_it(tmp_path):
    file = adapted("cpuloop40", tmp_path)
    run = verify(tmp_path, "--timeout", "60", "--candidate", file, operations=SLOTS)
    time.sleep(2.0)
    run.signal(9, *run.tree()["task"])
    ended = run.end()
    ended.assert_orderly(5)  # a fault of the harness, not of the candidate
    assert "its process ended with status -9" in ended.candidate("cpuloop40").text


@pytest.mark.parametrize("name", ["case_builder_sequence", "case_batch_sequence"])
def test_numbers_of_a_case_are_no_code(name, tmp_path):
    shutil.copy(FOLDER / f"{name}.json", tmp_path)
    ended = command("replay", f"{name}.json", "--candidate", "reference", folder=tmp_path).end()
    ended.assert_orderly(2)
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.parametrize("name", ["case_target", "case_candidate"])
def test_a_case_names_no_code(name, tmp_path):
    shutil.copy(FOLDER / f"{name}.json", tmp_path)
    evil = "from pathlib import Path\nPath('EXECUTED').touch()\n"
    (tmp_path / "named_by_the_case.py").write_text(evil, encoding="utf-8")
    ended = command("replay", f"{name}.json", folder=tmp_path).end()
    ended.assert_orderly(0, 1, 2)
    assert not (tmp_path / "EXECUTED").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        # It remembers by version counters, which an engine's writes through numpy leave alone.
        ("cached", "depends on the call before"),
        ("cheatbench", "returned another result while it was timed"),
    ],
)
def test_a_result_that_was_not_computed_is_not_called_faster(name, words, tmp_path):
    file = adapted(name, tmp_path)
    quick = ("--seconds", "1", "--steps", "0", "--out", "o")
    options = ("--against", "reference", "--candidate", file, *quick)
    run = command("bench", "--ops", "slice_query_start_locs", *options, folder=tmp_path)
    ended = run.end()
    ended.assert_orderly(1)
    assert words in ended.out
    assert " faster" not in ended.out
