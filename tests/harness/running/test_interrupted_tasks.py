"""An interrupted operation has what it found, even if its task has to be killed."""

from __future__ import annotations

import os
import signal
import time

import pytest

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running import interrupt
from attnproof.harness.running.exchange.observed import ObservedTrial
from attnproof.harness.running.parent import session
from attnproof.harness.running.parent.plan import Plan
from attnproof.harness.running.task import findings
from attnproof.harness.running.task.candidate_process import CandidateProcess
from attnproof.harness.running.task.root_causes import RootCauses
from attnproof.harness.running.task.settings import Settings

SPLIT = "split_decodes_and_prefills"
WRONG = f"def {SPLIT}(*args, **kwargs): return (0, 0, 0, 7)"
BLOCKS = f"""
import time
from pathlib import Path
from attnproof import reference
calls = 0
def {SPLIT}(*args, **kwargs):
    global calls
    calls += 1
    if calls == 40:
        Path(FLAG).touch()
        time.sleep(600)
    return reference.{SPLIT}(*args, **kwargs)
"""


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """Run a candidate until something has made the file `flag`; interrupt it then."""
    flag = tmp_path / "flag"
    monkeypatch.setattr(session, "_STOPPING_S", 1.0)

    def interrupt_once():
        if flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGINT)

    nothing = lambda *_: None  # noqa: E731
    callbacks = session.ProgressCallbacks(nothing, nothing, nothing, nothing, interrupt_once)

    def run(source):
        path = tmp_path / "mine.py"
        path.write_text(f"FLAG = {str(flag)!r}\n{source}", encoding="utf-8")
        candidate = Candidate("mine", str(path), interface="vllm-0.11")
        settings = Settings(examples_db="", examples=60, vary=False)
        with interrupt.restored_handlers():
            plan = Plan([ALL[SPLIT]], [candidate], settings, [], [], 1)
            [outcome], was_interrupted = session.run(plan, tmp_path, callbacks)
        interrupt.acknowledge()
        assert was_interrupted
        return outcome

    return run, flag


def test_a_candidate_that_blocks_in_a_call(interrupted):
    run, _ = interrupted
    outcome = run(BLOCKS)
    assert outcome.result.verdict == "UNVERIFIED"
    assert outcome.result.cases > 0
    assert outcome.result.reason == f"interrupted after {outcome.result.cases} cases"


@pytest.mark.parametrize(
    ("owner", "name"), [(ObservedTrial, "compute_expected"), (CandidateProcess, "end")]
)
def test_a_task_that_is_in_a_call_without_end(owner, name, interrupted, monkeypatch):
    run, flag = interrupted
    add, usual = RootCauses.add, getattr(owner, name)
    recorded = []

    def recording(*arguments):
        add(*arguments)
        recorded.append(True)

    def endless(*arguments, **options):
        if recorded:
            flag.touch()
            while True:
                time.sleep(600)  # goes on after a signal, as the call of a library does
        return usual(*arguments, **options)

    monkeypatch.setattr(RootCauses, "add", recording)
    monkeypatch.setattr(owner, name, endless)
    outcome = run(WRONG)
    assert outcome.findings
    assert outcome.result.verdict == "FAIL"
    assert outcome.result.failed > 0
    assert outcome.result.reason == f"interrupted after {outcome.result.cases} cases"
    assert outcome.root_causes


@pytest.mark.parametrize("times", [1, 2, 3])
def test_more_interrupts_than_one_lose_nothing(times, examine_candidate, tmp_path, monkeypatch):
    # `timeout` signals the whole group, and the parent its tasks: also while outputs are shown.
    left = [times]

    def interrupted_again(*arguments):
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt
        return usual(*arguments)

    usual = findings._explained
    monkeypatch.setattr(findings, "_explained", interrupted_again)
    path = tmp_path / "mine.py"
    path.write_text(WRONG, encoding="utf-8")
    outcome = examine_candidate(str(path), SPLIT)
    assert outcome.findings
    assert outcome.result.cases > 0
    assert outcome.result.reason == f"interrupted after {outcome.result.cases} cases"


def test_a_task_that_is_killed_keeps_its_findings(tmp_path, monkeypatch):
    add = RootCauses.add

    def killed_next(*arguments):
        add(*arguments)
        monkeypatch.setattr(
            ObservedTrial, "compute_expected", lambda *_, **__: os.kill(os.getpid(), 9)
        )

    monkeypatch.setattr(RootCauses, "add", killed_next)
    path = tmp_path / "mine.py"
    path.write_text(WRONG, encoding="utf-8")
    candidate = Candidate("mine", str(path), interface="vllm-0.11")
    nothing = lambda *_: None  # noqa: E731
    callbacks = session.ProgressCallbacks(nothing, nothing, nothing, nothing, lambda: None)
    plan = Plan([ALL[SPLIT]], [candidate], Settings(examples_db="", vary=False), [], [], 1)
    with interrupt.restored_handlers():
        [outcome], was_interrupted = session.run(plan, tmp_path, callbacks)
    assert not was_interrupted
    assert outcome.findings
    assert outcome.result.verdict == "FAIL"
    assert outcome.result.reason == "its process ended with status -9"
