"""`bench`: timings of verified operations, baselines, exit codes."""

from __future__ import annotations

import json
import sys

import msgspec
import pytest

from attnproof.harness import cli
from attnproof.harness.model.timing import Bench
from attnproof.harness.running.errors import (
    INCOMPLETE,
    INFRASTRUCTURE,
    MISMATCH,
    SLOWER,
    USAGE,
    VERIFIED,
    InfrastructureError,
)
from attnproof.harness.timing.measuring import time_all
from attnproof.harness.verbs import benchmark

pytestmark = pytest.mark.slow

OP = "is_block_tables_empty"
CANDIDATE = f"""
import os, time
from attnproof.reference import {OP} as right
def {OP}(*args, **kwargs):
    end = time.perf_counter() + float(os.environ.get("DELAY_S", "0"))
    while time.perf_counter() < end:
        pass
    return right(*args, **kwargs)
"""
WRONG = f"""
def {OP}(block_tables):
    return block_tables is not None
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Run `attnproof bench` on a candidate of one operation; return the exit code."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CANDIDATE, encoding="utf-8")
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")

    def run(*options, ops=OP, candidate="mine.py", verb="bench"):
        command = ["attnproof", verb, "--candidate", candidate, "--out", "out"]
        command += ["--ops", ops] if ops else []
        command += ["--against", "reference", "--seconds", "1.5"] if verb == "bench" else []
        monkeypatch.setattr(sys, "argv", [*command, "--steps", "0", "--jobs", "2", *options])
        with pytest.raises(SystemExit) as ending:
            cli.main()
        return ending.value.code

    return run


@pytest.fixture
def without_peer(monkeypatch):
    """Drop the timings of the peer: on a busy machine it is slower or faster than before."""

    def timed(*args):
        outcome = time_all(*args)
        mine = [timing for timing in outcome.bench.timings if timing.candidate == "mine"]
        outcome.bench.timings[:] = mine
        return outcome

    monkeypatch.setattr(benchmark, "time_all", timed)
    return timed


def bench_of(tmp_path):
    return msgspec.json.decode((tmp_path / "out" / "bench.json").read_bytes(), type=Bench)


def last_lines(capfd):
    captured = capfd.readouterr()
    return captured.out + captured.err


def test_candidates_are_timed_beside_their_peer(bench, tmp_path, capfd):
    assert bench("--markdown", "table.md") == VERIFIED
    found = bench_of(tmp_path)
    workloads = {"decode, 8 requests", "mixed, 8 requests", "prefill, 8 requests"}
    assert {timing.workload.name for timing in found.timings} == workloads
    assert {timing.candidate for timing in found.timings} == {"mine", "reference"}
    assert {(c.candidate, c.peer) for c in found.comparisons} == {("mine", "reference")}
    assert all(len(timing.host_ns) >= 4 for timing in found.timings)
    assert found.noise.comparisons == 3
    assert found.control_ns
    assert found.untimed == []
    assert found.baseline.state == "not asked for"
    printed = last_lines(capfd)
    assert "decode, 8 requests" in printed
    assert "of reference" in printed
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| mine, host | requests: | 8 |" in table
    assert f"| {OP} | decode |" in table
    assert "attnproof bench" in table
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["verdict"] == "PASS"
    assert (tmp_path / "out" / "index.html").exists()


def test_candidates_are_compared_with_each_of_several_peers(bench, tmp_path, capfd):
    (tmp_path / "other.py").write_text(CANDIDATE, encoding="utf-8")
    assert bench("--against", "other.py", "--markdown", "table.md") == VERIFIED
    found = bench_of(tmp_path)
    pairs = {(c.candidate, c.peer) for c in found.comparisons}
    assert pairs == {("mine", "reference"), ("mine", "other")}
    printed = last_lines(capfd)
    assert "of reference" in printed
    assert "of other" in printed
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert ", other. " in table.splitlines()[0]
    assert " of reference, " in table
    assert "| other, host | requests: | 8 |" in table


def test_a_failed_operation_is_not_timed(bench, tmp_path, capfd):
    assert bench(candidate="wrong.py") == MISMATCH
    found = bench_of(tmp_path)
    assert {timing.candidate for timing in found.timings} == {"reference"}
    (untimed,) = found.untimed
    assert (untimed.operation, untimed.candidate) == (OP, "wrong")
    assert untimed.reason.startswith("failed verification")
    assert "not timed: is_block_tables_empty of wrong" in last_lines(capfd)


def test_a_baseline_lets_the_same_speed_pass_and_not_a_slower_one(
    bench, without_peer, tmp_path, monkeypatch, capfd
):
    assert without_peer
    monkeypatch.setenv("DELAY_S", "0.0001")
    assert bench("--save-baseline", "main") == VERIFIED
    assert (tmp_path / "reports" / "baselines" / "main.json").exists()
    monkeypatch.setenv("DELAY_S", "0.0006")
    kept = (tmp_path / "reports" / "baselines" / "main.json").read_bytes()
    assert bench("--baseline", "main", "--save-baseline", "main") == SLOWER
    assert (tmp_path / "reports" / "baselines" / "main.json").read_bytes() == kept
    found = bench_of(tmp_path).baseline
    slower = {r.candidate for r in found.regressions if r.verdict == "slower"}
    assert found.state == "compared"
    assert "mine" in slower
    printed = last_lines(capfd)
    assert "SLOWER (is_block_tables_empty of mine on " in printed
    assert "baseline main was not saved: it is slower than main" in printed
    monkeypatch.setenv("DELAY_S", "0.00002")
    assert bench("--baseline", "main", "--ops", OP) == VERIFIED
    regressions = bench_of(tmp_path).baseline.regressions
    assert {r.verdict for r in regressions if r.candidate == "mine"} == {"faster"}


def test_a_slower_timing_is_repeated_before_the_verdict(
    bench, without_peer, tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("DELAY_S", "0.0001")
    assert bench("--save-baseline", "main") == VERIFIED

    def slow_once(*args):
        monkeypatch.setenv("DELAY_S", "0.0006" if not asked else "0.00002")
        asked.append(sorted({case.workload.name for case in args[0].cases}))
        return without_peer(*args)

    asked: list[list[str]] = []
    monkeypatch.setattr(benchmark, "time_all", slow_once)
    assert bench("--baseline", "main") == VERIFIED
    timed = bench_of(tmp_path)
    found = timed.baseline
    assert len(asked) == 2
    assert asked[1] == asked[0]  # all of mine looked slower
    assert found.not_confirmed == 3
    assert "slower" not in {r.verdict for r in found.regressions}
    mine = [timing for timing in timed.timings if timing.candidate == "mine"]
    assert len(mine) == 3
    assert all(timing.host.median_ns < 300_000 for timing in mine)  # the second ones
    printed = last_lines(capfd)
    assert "timing again what looks slower: 3 workloads" in printed
    assert "looked slower, but not when timed again" in printed


def test_a_problem_while_timing_again_is_reported(bench, monkeypatch, capfd):
    monkeypatch.setenv("DELAY_S", "0.0001")
    assert bench("--save-baseline", "main") == VERIFIED
    monkeypatch.setenv("DELAY_S", "0.0006")
    runs = []

    def dying_again(*args):
        outcome = time_all(*args)
        runs.append(outcome)
        if len(runs) > 1:
            outcome.problems.append(f"{OP} of mine crashed")
        return outcome

    monkeypatch.setattr(benchmark, "time_all", dying_again)
    assert bench("--baseline", "main") == SLOWER
    assert len(runs) == 3
    assert f"; {OP} of mine crashed" in last_lines(capfd)


def test_an_interrupt_while_timing_again_keeps_the_first_timings(bench, monkeypatch, capfd):
    monkeypatch.setenv("DELAY_S", "0.0001")
    assert bench("--save-baseline", "main") == VERIFIED
    monkeypatch.setenv("DELAY_S", "0.0006")
    runs = []

    def interrupted_again(*args):
        runs.append(time_all(*args))
        if len(runs) > 1:
            runs[-1].interrupted = True
            runs[-1].bench.timings.clear()
        return runs[-1]

    monkeypatch.setattr(benchmark, "time_all", interrupted_again)
    assert bench("--baseline", "main", "--save-baseline", "other") == SLOWER
    assert len(runs) == 2
    printed = last_lines(capfd)
    assert "; interrupted while timing" in printed
    assert "baseline other was not saved" in printed


def test_a_table_that_cannot_be_written_leaves_the_report(bench, tmp_path, capfd):
    (tmp_path / "table.md").symlink_to("nowhere/table.md")
    assert bench("--markdown", "table.md") == INFRASTRUCTURE
    assert "--markdown table.md cannot be written: " in last_lines(capfd)
    assert (tmp_path / "out" / "index.html").exists()
    assert bench_of(tmp_path).timings


def test_a_baseline_of_other_operations_is_incomplete(bench, capfd):
    assert bench("--save-baseline", "main") == VERIFIED
    assert "baseline saved: " in last_lines(capfd)
    other = "get_num_prefill_decode_query_kv_tokens"
    assert bench("--baseline", "main", ops=other, candidate="optimized") == INCOMPLETE
    assert "baseline main and this run have no timing in common" in last_lines(capfd)


def test_a_run_without_a_time_is_no_baseline(bench, monkeypatch, tmp_path, capfd):
    import attnproof.harness.verbs.benchmark as benchmark

    monkeypatch.setattr(benchmark, "read_ledgers", lambda _: {})  # so no case was judged
    assert bench("--save-baseline", "main") == INCOMPLETE
    assert "baseline main was not saved: nothing was timed" in last_lines(capfd)
    assert not (tmp_path / "reports" / "baselines").exists()


def test_a_baseline_of_another_machine_is_incomplete(bench, tmp_path, capfd):
    assert bench("--save-baseline", "main") == VERIFIED
    path = tmp_path / "reports" / "baselines" / "main.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    saved["machine"]["cpu"] = "another processor"
    path.write_text(json.dumps(saved), encoding="utf-8")
    assert bench("--baseline", "main") == INCOMPLETE
    assert bench_of(tmp_path).baseline.state == "another machine"
    assert "main" in last_lines(capfd)


def test_without_ops_what_the_candidate_offers_is_timed(bench, tmp_path):
    assert bench(ops="") == VERIFIED
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert {result["name"] for result in summary["operations"]} == {OP}
    assert {timing.operation for timing in bench_of(tmp_path).timings} == {OP}


def test_verify_times_what_it_verified(bench, tmp_path):
    assert bench("--bench", "--examples", "5", verb="verify") == VERIFIED
    found = bench_of(tmp_path)
    assert {timing.candidate for timing in found.timings} == {"mine"}
    assert found.comparisons == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "interpreter"], "bench times on cpu and cuda only"),
        (["--against", "nobody_at_all"], "no candidate 'nobody_at_all'"),
        (["--against", "mine.py"], "--against mine.py: no other candidate to time"),
        (["--markdown", "nowhere/table.md"], "there is no folder nowhere"),
        (["--markdown", "."], "--markdown .: it is a folder"),
        (["--markdown", "mine.py"], "no benchmark wrote it"),
        (["--save-baseline", "golden", "--baselines", "."], "golden.json is no baseline"),
        (["--seconds", "0"], "--seconds is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--steps", "-1"], "--steps is -1"),
        (["--baseline", "../elsewhere"], "../elsewhere"),
        (["--baseline", "nowhere"], "there is no baseline"),
        (["--baseline", "golden", "--baselines", "."], "is damaged"),
        (["--trace", "none.csv", "--steps", "3"], "none.csv"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_run(bench, options, words, tmp_path, capfd):
    (tmp_path / "golden.json").write_text('{"tokens": 3}')
    assert bench(*options) == USAGE
    captured = capfd.readouterr()
    assert words in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert not (tmp_path / "out" / "summary.json").exists()


def test_vllm_that_is_not_installed_is_one_line(bench, capfd):
    pytest.importorskip("torch")
    try:
        import vllm  # noqa: F401
    except ImportError:
        assert bench("--against", "vllm") == USAGE
        assert len(capfd.readouterr().err.strip().splitlines()) == 1
    else:
        pytest.skip("vLLM is installed")


def test_a_clock_too_coarse_is_one_line_and_nothing_is_run(bench, monkeypatch, capfd):
    import attnproof.harness.verbs.benchmark as benchmark

    def examine():
        raise InfrastructureError("the clock is too coarse: use another machine")

    monkeypatch.setattr(benchmark, "host_clock", examine)
    assert bench() == INFRASTRUCTURE
    assert capfd.readouterr().err == "attnproof: the clock is too coarse: use another machine\n"


def test_an_interrupt_keeps_timings_and_leaves_the_run_incomplete(
    bench, monkeypatch, tmp_path, capfd
):
    from attnproof.harness.timing.session import TimingProcess

    measure, asked = TimingProcess.measure, []

    def interrupted(self, place, *args, **kwargs):
        asked.append(place)
        if len(asked) > 2:
            raise KeyboardInterrupt
        return measure(self, place, *args, **kwargs)

    monkeypatch.setattr(TimingProcess, "measure", interrupted)
    assert bench("--save-baseline", "main") == INCOMPLETE
    found = bench_of(tmp_path)
    assert {timing.workload.name for timing in found.timings} == {"decode, 8 requests"}
    assert "baseline main was not saved: the run was interrupted" in last_lines(capfd)
