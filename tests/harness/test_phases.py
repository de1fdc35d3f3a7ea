"""Tests of the CPU time by phase and process."""

from __future__ import annotations

import os
import resource
import time

import pytest

from attnproof.harness.phases import Phase, Process, counted, during, enter_process, profiled


def spend(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def cells(text):
    """Return the numbers of a table by phase and process."""
    head, *lines = [line.rsplit(maxsplit=5) for line in text.splitlines() if line]
    assert head[-1] == "all"
    columns = [*Process, "all"]
    return {
        (name, column): float(cell)
        for name, *row in lines
        for column, cell in zip(columns, row, strict=True)
    }


def test_a_phase_inside_another_is_not_part_of_it():
    with profiled() as table:
        with during(Phase.JUDGE):
            spend(0.05)
            with during(Phase.LEDGER):
                spend(0.1)
            spend(0.05)
        found = cells(table())
    assert found["judge", Process.PARENT] == pytest.approx(0.1, abs=0.02)
    assert found["ledger", "all"] == pytest.approx(0.1, abs=0.02)


def test_a_phase_ends_with_an_error():
    @counted(Phase.CALL)
    def fail():
        raise ValueError("no result")

    with profiled() as table:
        with pytest.raises(ValueError, match="no result"):
            fail()
        with during(Phase.DRAW):
            spend(0.05)
        found = cells(table())
    assert found["call", "all"] == 0
    assert found["draw", "all"] == pytest.approx(0.05, abs=0.02)


def test_the_time_of_a_killed_process_is_counted():
    with profiled() as table:
        child = os.fork()
        if not child:
            enter_process(Process.WORKER)
            with during(Phase.CALL):
                spend(0.05)
            os.kill(os.getpid(), 9)
        os.waitpid(child, 0)
        text = table()
    assert cells(text)["call", Process.WORKER] == pytest.approx(0.05, abs=0.02)
    assert "1 worker " in text


def test_functions_are_called_as_before_without_a_profile():
    assert counted(Phase.CALL)(max)(1, 2) == 2
    with during(Phase.CALL):
        enter_process(Process.WORKER)


def test_the_table_of_a_run_has_nearly_all_of_its_time(attnproof, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = ("--ops", "build_slot_mapping", "--candidate", "optimized", "--examples", "9")
    done = attnproof("verify", *options, "--profile", "--quiet", cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    found = cells(done.stderr)
    assert done.stdout.startswith("PASS: ")
    assert 0.8 * spent < found["all", "all"] < 1.05 * spent
    for phase in ("draw", "reference", "judge", "receive", "ledger"):
        assert found[phase, Process.TASK] > 0
    for phase in ("call", "observe", "lay out"):
        assert found[phase, Process.WORKER] > 0
