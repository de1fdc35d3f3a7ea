"""Clocks, turns and rounds, tested without assumptions on the machine's speed."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.timing.analysis.noise import measure_noise
from attnproof.harness.timing.process import control
from attnproof.harness.timing.process.clocks import HostClock, examine, host_clock, time_calls
from attnproof.harness.timing.process.comparison import Mismatch, TimedCall, WrongResultError
from attnproof.harness.timing.process.paired import (
    _PRIMING_CALLS,
    Budget,
    Contestant,
    measure,
)
from attnproof.harness.timing.process.steady import steady
from attnproof.harness.timing.statistics import FEWEST_SAMPLES

FEW = Budget(seconds=0.0, least_rounds=4, most_rounds=6)


def ticking(step: int, readings_a_step: int = 1):
    """A clock that moves by `step` at every `readings_a_step`-th reading."""
    count = itertools.count()
    return lambda: next(count) // readings_a_step * step


def working(name: str, log: list[str], turns: int = 300) -> Contestant:
    """A contestant that logs each call."""

    def run() -> None:
        log.append(name)
        sum(range(turns))

    return Contestant(name, lambda: TimedCall(run))


def remembering(result=lambda made: made, *, nbytes=1 << 14):
    """A contestant whose calls return `result(n)` for the n-th inputs, and the list of its calls.

    A result is right if it is n.
    """
    called: list[int] = []
    count = itertools.count()

    def make() -> TimedCall:
        made = next(count)

        def run() -> int:
            called.append(made)
            sum(range(300))
            return result(made)

        def mismatch(got: int) -> Mismatch | None:
            return None if got == made else Mismatch("an operation", f"{got} is not {made}")

        return TimedCall(run, mismatch, nbytes=nbytes)

    return Contestant("a", make), called


def test_a_clock_is_examined():
    assert examine(ticking(10)) == HostClock(10, 10)
    assert examine(ticking(4000, 50)) == HostClock(4000, 0)


def test_coarser_clock_needs_longer_samples():
    fine, coarse = examine(ticking(10)), examine(ticking(4000, 50))
    assert fine.least_sample_ns == 50_000
    assert coarse.least_sample_ns == 2_000_000


@pytest.mark.parametrize("readings", [50, 5000])  # it moves, or not, while it is examined
def test_a_clock_too_coarse_is_an_error_in_one_line(readings):
    with pytest.raises(InfrastructureError) as raised:
        examine(ticking(15_600_000, readings))
    assert str(raised.value) == (
        "the clock is too coarse: it moves in steps of 15.6 ms, and nothing can be timed "
        "beyond 0.1 ms; use a machine whose time.perf_counter_ns is finer"
    )


def test_a_clock_that_stands_still_is_an_error(monkeypatch):
    monkeypatch.setattr("attnproof.harness.timing.process.clocks._MOST_READINGS", 100)
    with pytest.raises(InfrastructureError, match=r"^the clock stands still: [^\n]*$"):
        examine(lambda: 7)


def test_this_machine_has_a_clock():
    clock = host_clock()
    assert 0 < clock.resolution_ns <= clock.least_sample_ns


def test_a_sample_is_the_mean_of_its_calls():
    calls = []
    assert time_calls([lambda: calls.append(1)] * 5, (), ticking(1000)) == (200, [])
    assert calls == [1] * 5


def test_chosen_results_are_kept():
    thunks = [lambda number=number: number for number in range(6)]
    assert time_calls(thunks, (0, 3, 5))[1] == [0, 3, 5]
    assert time_calls(thunks, (2,))[1] == [2]


def test_contestants_take_turns_and_neither_is_always_first(monkeypatch):
    monkeypatch.setattr("attnproof.harness.timing.process.clocks._SHORTEST_SAMPLE_NS", 1.0)
    monkeypatch.setattr("attnproof.harness.timing.process.clocks._STEPS_A_SAMPLE", 0)
    log: list[str] = []
    found = measure([working("a", log), working("b", log)], FEW, "cpu")
    assert [sample.calls for sample in found] == [1, 1]
    assert [len(sample.host_ns) for sample in found] == [4, 4]
    # Each sample after calls that are not timed, which find the caches as somebody left them.
    turn = {name: (_PRIMING_CALLS + 1) * name for name in "ab"}
    assert "".join(log).endswith(2 * (turn["a"] + 2 * turn["b"] + turn["a"]))


def test_every_contestant_has_a_sample_a_round():
    found = measure([working("a", []), working("b", [], 3000), working("c", [])], FEW, "cpu")
    assert [len(sample.host_ns) for sample in found] == [4, 4, 4]
    assert all(ns > 0 for sample in found for ns in sample.host_ns)
    assert found[1].device_ns == []


def test_short_calls_are_timed_many_at_a_time_and_long_ones_alone():
    short, long = measure([working("a", [], 1), working("b", [], 200_000)], FEW, "cpu")
    assert short.calls >= 10
    assert long.calls == 1


def test_rounds_end_at_the_limit():
    budget = Budget(seconds=60, least_rounds=2, most_rounds=7, tight=0.0)
    [found] = measure([working("a", [])], budget, "cpu")
    assert len(found.host_ns) == 7


def test_the_warm_up_is_part_of_the_time():
    def make():
        time.sleep(0.02)
        return TimedCall(lambda: None, nbytes=1 << 30)

    budget = Budget(seconds=0.06, least_rounds=1, most_rounds=9)
    [found] = measure([Contestant("a", make)], budget, "cpu")
    assert len(found.host_ns) == 1


def test_slow_rounds_are_the_fewest_whose_test_can_be_significant():
    def make():
        time.sleep(0.02)
        return TimedCall(lambda: None, nbytes=1 << 30)

    [found] = measure([Contestant("a", make)], Budget(seconds=0.02), "cpu")
    assert len(found.host_ns) == FEWEST_SAMPLES


def test_rounds_end_when_the_intervals_are_tight():
    budget = Budget(seconds=60, least_rounds=2, most_rounds=400, tight=10.0)
    [found] = measure([working("a", [])], budget, "cpu")
    assert len(found.host_ns) == 30


def test_single_use_call_is_made_anew_and_run_once():
    made: list[list[int]] = []

    def make():
        made.append([])
        run = made[-1]
        return TimedCall(lambda: run.append(1))

    budget = Budget(seconds=0.1, least_rounds=4, most_rounds=6)
    [found] = measure([Contestant("a", make, single_use=True)], budget, "cpu")
    assert found.calls > 1
    assert len(made) > found.calls * len(found.host_ns)
    assert max(map(len, made)) == 1


def test_few_calls_if_making_them_is_slow():
    def make():
        sum(range(200_000))
        return TimedCall(lambda: None)

    budget = Budget(seconds=0.1, least_rounds=4, most_rounds=6)
    [found] = measure([Contestant("a", make, single_use=True)], budget, "cpu")
    assert found.calls <= 25  # 0.1 s / 4 rounds / 1 ms or more


def test_errors_of_a_contestant_propagate():
    with pytest.raises(ZeroDivisionError):
        measure([Contestant("a", lambda: TimedCall(lambda: 1 / 0))], FEW, "cpu")


def test_every_call_of_a_sample_has_inputs_of_its_own():
    contestant, called = remembering()
    budget = Budget(seconds=1, least_rounds=4, most_rounds=4)
    [found] = measure([contestant], budget, "cpu")
    assert found.calls > 4
    last = called[-found.calls :]
    assert len(set(last)) == found.calls
    assert not set(last) & set(called[: -found.calls])


def test_inputs_are_used_in_turn_if_there_is_no_time_to_make_one_for_each_call():
    contestant, called = remembering()
    [found] = measure([contestant], FEW, "cpu")  # a budget of no time at all
    last = called[-found.calls :]
    assert len(set(last)) == 4
    uses = [last.count(made) for made in set(last)]
    assert max(uses) - min(uses) <= 1
    assert not set(last) & set(called[: -found.calls])


def test_a_large_input_is_used_by_all_calls_of_a_sample():
    contestant, called = remembering(nbytes=1 << 30)
    [found] = measure([contestant], FEW, "cpu")
    assert len(set(called[-found.calls :])) == 1


def test_a_wrong_result_is_an_error_that_names_the_contestant():
    contestant, called = remembering(lambda made: made if made < 9 else -1)
    with pytest.raises(WrongResultError) as raised:
        measure([contestant], FEW, "cpu")
    assert raised.value.name == "a"
    assert raised.value.mismatch.text.startswith("-1 is not ")
    assert max(called) >= 9


def test_a_rare_wrong_result_is_found_at_last():
    count = itertools.count()
    contestant, _ = remembering(lambda made: -1 if next(count) % 3 == 0 else made)
    with pytest.raises(WrongResultError):
        measure([contestant], Budget(seconds=5, least_rounds=200, most_rounds=400), "cpu")


ON_A_DEVICE = """
import torch
from attnproof.harness.timing.process.comparison import TimedCall, WrongResultError
from attnproof.harness.timing.process.paired import Budget, Contestant, measure
given = torch.arange(1000, device="cuda")
budget = Budget(seconds=0, least_rounds=4, most_rounds=4)
for spent in (False, True):
    make = lambda: TimedCall(lambda: given + 1, lambda got: None if got[0] == 1 else "wrong")
    [found] = measure([Contestant("a", make, spent)], budget, "cuda")
    print(len(found.host_ns), len(found.device_ns), min(found.device_ns) > 0, found.calls <= 100)
try:
    wrong = TimedCall(lambda: given, lambda got: "wrong")
    measure([Contestant("a", lambda: wrong)], budget, "cuda")
except WrongResultError as error:
    print(error.name, error.mismatch)
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_on_a_device_every_round_has_a_sample_of_both_clocks(tmp_path):
    root = Path(__file__).parents[3]
    script = tmp_path / "script.py"
    script.write_text(ON_A_DEVICE)
    done = subprocess.run(
        [sys.executable, "tests/fake_cuda.py", str(script)],
        cwd=root,
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["4 4 True True"] * 2 + ["a wrong"], done.stderr


def test_noise_compares_every_contestant_with_itself():
    found = measure_noise([working("a", []), working("b", [])], FEW, "cpu", repeats=2)
    assert found.comparisons == 4
    assert found.floor >= 0
    assert found.clock_resolution_ns == host_clock().resolution_ns


def test_settings_are_restored():
    before = (gc.isenabled(), torch.get_num_threads(), os.sched_getaffinity(0))
    with steady():
        assert not gc.isenabled()
        assert torch.get_num_threads() == 1
        assert len(os.sched_getaffinity(0)) == 1
    assert (gc.isenabled(), torch.get_num_threads(), os.sched_getaffinity(0)) == before


def test_settings_are_restored_after_an_error():
    before = os.sched_getaffinity(0)
    with pytest.raises(ZeroDivisionError), steady():
        1 / 0  # noqa: B018
    assert gc.isenabled()
    assert os.sched_getaffinity(0) == before


def test_nested_steady_keeps_the_settings_of_the_outer_one():
    with steady():
        with steady():
            pass
        assert not gc.isenabled()
        assert len(os.sched_getaffinity(0)) == 1


def test_steady_works_without_pinning_to_a_core(monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    with steady():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_control_is_the_same_work_each_time():
    assert control.sample() > 0
    assert control._work() == control._work()
