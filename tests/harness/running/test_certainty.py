"""A death counts only if a fresh process shows it again, and a hang is cheap."""

from __future__ import annotations

import resource

import pytest

from attnproof.harness.running.task import certainty
from attnproof.harness.running.task.workers import Worker

SPLIT = "split_decodes_and_prefills"
HEAD = """
import os, signal, time
from pathlib import Path
from attnproof.reference import split_decodes_and_prefills as right
FLAG = Path(__file__).with_suffix(".flag")
CALLS = 0
"""
BODY = """
def split_decodes_and_prefills(*args, **kwargs):
    global CALLS
    CALLS += 1
    {statement}
    return right(*args, **kwargs)
"""


@pytest.fixture
def examined(examine_candidate, tmp_path):
    """Examine a candidate that runs a statement before it returns the right result."""

    def run(statement, **settings):
        (tmp_path / "mine.py").write_text(HEAD + BODY.format(statement=statement))
        return examine_candidate(str(tmp_path / "mine.py"), SPLIT, **settings)

    return run


def test_an_import_that_is_killed_once_is_repeated(examine_candidate, tmp_path):
    once = "if not FLAG.exists(): FLAG.write_text('x'); os.kill(os.getpid(), signal.SIGKILL)\n"
    (tmp_path / "mine.py").write_text(HEAD + once + BODY.format(statement="pass"))
    outcome = examine_candidate(str(tmp_path / "mine.py"), SPLIT, examples=5)
    assert outcome.result.verdict == "PASS"


ONCE = "if CALLS == 30 and not FLAG.exists(): FLAG.write_text('x'); {}"


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "crashes with SIGKILL"),
        ("os._exit(5)", "ends the process with status 5"),
        ("time.sleep(60)", "does not answer within 1 s"),
        ("raise MemoryError", "MemoryError"),
    ],
)
def test_a_death_that_happens_once_is_no_finding(examined, deed, words):
    outcome = examined(ONCE.format(deed), examples=30, timeout_s=1.0)
    assert outcome.findings == []
    assert outcome.result.verdict == "UNVERIFIED"
    assert outcome.result.reason.startswith("once, not again: ")
    assert words in outcome.result.reason


SLOW = """
    call = str(getattr(args[0], "query_start_loc", ""))
    if CALLS >= 30 and not FLAG.exists():
        FLAG.write_text(call)
        time.sleep(60)
    if FLAG.exists() and FLAG.read_text() == call:
        time.sleep(0.45)
"""


@pytest.mark.slow
def test_a_call_that_is_late_once_and_slow_is_no_finding(examined):
    outcome = examined(SLOW, examples=9, timeout_s=6.0)
    assert outcome.findings == []
    assert "once, not again" in outcome.result.reason


def test_a_death_after_the_same_earlier_calls_is_a_finding(examined):
    outcome = examined("if CALLS == 30: os._exit(5)", examples=30, sparse=False)
    [finding] = outcome.findings
    assert outcome.result.verdict == "FAIL"
    assert "other calls in the same process" in finding.message
    # A smaller case alone cannot show it.
    assert outcome.result.origins.get("shrinking", 0) <= 1


def test_a_fresh_process_may_compile_longer_than_a_call_may_take(examined):
    compiles = "if CALLS == 1 and FLAG.exists(): time.sleep(1.4)\n    FLAG.touch()"
    outcome = examined(compiles, examples=10, timeout_s=1.0)
    assert outcome.findings == []
    assert outcome.result.verdict == "PASS"


def cpu_s_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@pytest.mark.slow
def test_a_hang_is_complete_within_three_timeouts(examined, monkeypatch):
    monkeypatch.setattr(certainty, "_SHORTEST_S", 0.3)  # forty cases hang that long
    begun = cpu_s_of_children()
    outcome = examined("while len(args[0].query_start_loc) == 4: pass", examples=10, timeout_s=1.5)
    hangs = [finding for finding in outcome.findings if "does not answer" in finding.diagnosis]
    assert len(hangs) == 1
    assert hangs[0].diagnosis == "does not answer within 1.5 s"
    assert hangs[0].requests == 3
    assert cpu_s_of_children() - begun < 60


@pytest.mark.slow
def test_hangs_after_other_calls_get_a_learnt_limit(examined, monkeypatch):
    limits = []

    def recorded(worker, reply):
        limits.append(worker.timeout_s)
        return replaced(worker, reply)

    replaced = Worker.replaced
    monkeypatch.setattr(Worker, "replaced", recorded)
    outcome = examined(
        "if CALLS % 80 == 0: time.sleep(60)", examples=2, timeout_s=2.0, sparse=False
    )
    assert outcome.result.verdict == "FAIL"
    assert all("other calls in the same process" in one.message for one in outcome.findings)
    assert limits[0] == 2.0
    assert limits[-1] == 1.0


def test_an_import_that_fails_later_keeps_the_findings(examine_candidate, tmp_path):
    wrong = "if len(args[0].query_start_loc) == 3: return (0, 0, 0, 0)"
    deed = "if CALLS >= 90: FLAG.write_text('x'); os._exit(9)"
    licence = "if FLAG.exists(): raise RuntimeError('no more seats')\n"
    body = BODY.format(statement=f"{wrong}\n    {deed}")
    (tmp_path / "mine.py").write_text(HEAD + licence + body)
    outcome = examine_candidate(str(tmp_path / "mine.py"), SPLIT)
    assert outcome.findings
    assert outcome.result.verdict == "FAIL"
    assert "no more seats" in outcome.result.reason


def test_processes_left_behind_are_a_finding(examined):
    outcome = examined("if CALLS == 30: __import__('subprocess').Popen(['sleep', '77'])")
    [finding] = outcome.findings
    assert finding.diagnosis == "leaves processes behind"
    assert "sleep 77" in finding.message
