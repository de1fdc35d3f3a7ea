"""A worker as its task sees it: late replies, closed pipes."""

from __future__ import annotations

import signal

import pytest

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations import ALL
from attnproof.harness.running.exchange.observed import ObservedTrial
from attnproof.harness.running.task.case_process import Following
from attnproof.harness.running.task.workers import Worker

SPLIT = "split_decodes_and_prefills"
CASE = Case(
    SPLIT,
    Batch(block_size=1, query_lens=(1,), computed_lens=(0,), blocks=((0,),)),
    {"decode_threshold": 1, "require_uniform": False},
)

ONCE = f"""
from attnproof import reference
calls = []
def {SPLIT}(*args, **kwargs):
    calls.append(args)
    if len(calls) > 1:
        raise RuntimeError("called twice")
    return reference.{SPLIT}(*args, **kwargs)
"""


DEADLY = f"""
import os
from attnproof import reference
def {SPLIT}(batch, decode_threshold=1, *args, **kwargs):
    os.write(2, b"%d " % decode_threshold)
    if decode_threshold == 3:
        os._exit(5)
    return reference.{SPLIT}(batch, decode_threshold, *args, **kwargs)
"""


CLOSING = f"""
import os, time
def {SPLIT}(*args, **kwargs):
    os.closerange(3, 1000)
    time.sleep(60)
"""


SLOW = f"""
import time
from attnproof import reference
def {SPLIT}(*args, **kwargs):
    time.sleep(0.3)
    return reference.{SPLIT}(*args, **kwargs)
"""


ODD = f"""
from attnproof.reference import {SPLIT}
class Odd:
    __module__ = type.__dict__["__module__"]
odd = Odd()
"""


def test_a_class_without_a_module_name_does_not_stop_the_import(tmp_path):
    path = tmp_path / "odd.py"
    path.write_text(ODD, encoding="utf-8")
    operations = {SPLIT: ALL[SPLIT]}
    worker = Worker(Candidate("odd", str(path)), operations, timeout_s=60, memory_bytes=4 << 30)
    try:
        assert worker.judge(CASE).failures == ()
    finally:
        worker.stop()


@pytest.mark.parametrize(
    ("repeated", "poisoned", "objecting"),
    [
        (True, True, {"determinism", "padding"}),
        (True, False, {"determinism"}),
        (False, True, {"padding"}),
        (False, False, set()),
    ],
)
def test_calls_beside_the_first_one_are_made_if_asked_for(tmp_path, repeated, poisoned, objecting):
    path = tmp_path / "once.py"
    path.write_text(ONCE, encoding="utf-8")
    operations = {SPLIT: ALL[SPLIT]}
    worker = Worker(Candidate("once", str(path)), operations, timeout_s=60, memory_bytes=4 << 30)
    try:
        verdict = worker.judge(CASE, repeated=repeated, poisoned=poisoned)
    finally:
        worker.stop()
    assert {failure.oracle for failure in verdict.failures} == objecting


@pytest.fixture
def impatient(tmp_path):
    """A worker with timeout 0, and a candidate that replies later."""
    path = tmp_path / "slow.py"
    path.write_text(SLOW, encoding="utf-8")
    worker = Worker(
        Candidate("slow", str(path)), {SPLIT: ALL[SPLIT]}, timeout_s=0, memory_bytes=4 << 30
    )
    signal.alarm(60)  # instead of a wait without end
    yield worker
    signal.alarm(0)
    worker.stop()


def test_process_that_closes_the_pipe_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("attnproof.harness.running.processes.child._CLOSING_S", 0.1)
    path = tmp_path / "closing.py"
    path.write_text(CLOSING, encoding="utf-8")
    operations = {SPLIT: ALL[SPLIT]}
    worker = Worker(Candidate("closing", str(path)), operations, timeout_s=60, memory_bytes=4 << 30)
    try:
        [failure] = worker.judge(CASE).failures
    finally:
        worker.stop()
    assert failure.diagnosis == "closes the channel to the harness and goes on"


@pytest.mark.parametrize("lane", ["cpu", "interpreter"])
@pytest.mark.parametrize("times", [0.05, 0.3, 100.0])
def test_a_case_that_is_slow_for_the_reference_has_more_time(lane, times, tmp_path, monkeypatch):
    def compute_expected(_trial, *, poisoned):
        return times / {"cpu": 50, "interpreter": 20_000}[lane]

    monkeypatch.setattr(ObservedTrial, "compute_expected", compute_expected)
    path = tmp_path / "slow.py"
    path.write_text(SLOW.replace("0.3", "60"), encoding="utf-8")
    candidate = Candidate("slow", str(path), lane)
    worker = Worker(candidate, {SPLIT: ALL[SPLIT]}, timeout_s=0.1, memory_bytes=4 << 30)
    try:
        [failure] = worker.call_once(CASE).failures
    finally:
        worker.stop()
    limit = {0.05: "0.1", 0.3: "0.3", 100.0: "1.5"}[times]  # --timeout, in proportion, the most
    assert failure.diagnosis == f"does not answer within {limit} s"


def test_late_reply_is_a_hang(impatient):
    for deaths in (1, 2):
        [failure] = impatient.judge(CASE).failures
        assert failure.diagnosis == "does not answer within 0 s"
        assert impatient.deaths == deaths


@pytest.fixture
def deadly(tmp_path):
    path = tmp_path / "deadly.py"
    path.write_text(DEADLY, encoding="utf-8")
    candidate = Candidate("deadly", str(path))
    worker = Worker(candidate, {SPLIT: ALL[SPLIT]}, timeout_s=60, memory_bytes=4 << 30)
    yield worker
    worker.stop()


def with_threshold(threshold):
    return Case(SPLIT, CASE.batch, {"decode_threshold": threshold, "require_uniform": False})


def test_the_next_case_runs_while_the_one_before_is_judged(deadly):
    first, second = with_threshold(1), with_threshold(2)
    deadly.following = Following(second, repeated=False, poisoned=False)
    assert deadly.judge(first, repeated=False, poisoned=False).failures == ()
    assert deadly.calls_before(second) == [first]
    assert deadly.judge(second, repeated=False, poisoned=False).failures == ()
    assert [*deadly.cases] == [first, second]
    assert deadly._process._log() == "1 2 "


@pytest.mark.parametrize("between", [[], [2], [2, 1]])
def test_a_death_is_blamed_on_the_case_that_was_sent_ahead(deadly, between):
    deadly.following = Following(with_threshold(3), repeated=True, poisoned=True)
    for threshold in (1, *between):
        assert deadly.judge(with_threshold(threshold)).failures == ()
    [failure] = deadly.judge(with_threshold(3)).failures
    assert failure.diagnosis == "ends the process with status 5"
    assert deadly.deaths == 1 + bool(between)
    assert deadly.judge(with_threshold(1)).failures == ()
