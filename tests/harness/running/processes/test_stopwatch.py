"""Time of a process tree: what it works, and what it waits for nothing but itself."""

from __future__ import annotations

import os
import time

import pytest

from attnproof.harness.running.processes.stopwatch import Stopwatch
from attnproof.harness.running.processes.tree import Activity, activity_of

MODULE = "attnproof.harness.running.processes.stopwatch"


@pytest.mark.parametrize(
    ("pause_s", "cpu_s", "is_runnable", "taken_s"),
    [
        (0.1, 0.1, True, 9.9),  # works
        (0.1, 0.0, False, 10.0),  # sleeps, or is in a deadlock
        (0.1, 0.001, True, 0.099),  # waits for a core nearly always
        (0.1, 0.0, True, 0.0),  # never gets one
        (0.1, 0.8, True, 9.9),  # works in eight threads
        (100.0, 0.0, False, 20.0),  # the machine is suspended again and again
        (100.0, 90.0, True, 8910.0),  # works, while nobody looks
    ],
)
def test_a_hundred_looks(pause_s, cpu_s, is_runnable, taken_s, monkeypatch):
    now, used = 0.0, 0.0
    monkeypatch.setattr(f"{MODULE}.time.monotonic", lambda: now)
    monkeypatch.setattr(f"{MODULE}.activity_of", lambda _pid: Activity(used, is_runnable))
    stopwatch = Stopwatch(1)
    for _ in range(100):
        now, used = now + pause_s, used + cpu_s
        stopwatch.look()
    assert stopwatch.seconds == pytest.approx(taken_s)


def test_the_activity_of_this_process():
    before = activity_of(os.getpid())
    assert before.is_runnable
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    assert activity_of(os.getpid()).cpu_s >= before.cpu_s + 0.08  # the kernel counts in 10 ms


def test_the_activity_of_a_process_that_sleeps_and_of_none():
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    while activity_of(child).is_runnable:
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert activity_of(child) == (0.0, False)
