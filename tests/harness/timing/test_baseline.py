"""The file of a baseline, and the comparison of a later run with it."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

from attnproof.harness.model.run import Environment
from attnproof.harness.model.timing import Bench, Costs, Noise, Step, Steps, Timing, Workload
from attnproof.harness.running.errors import InfrastructureError, UsageError
from attnproof.harness.timing.analysis.baseline import BaselineError, load, path_of, save
from attnproof.harness.timing.analysis.regressions import against, confirm, grown_costs, slower
from attnproof.harness.timing.statistics import interval

HERE = Environment(
    attnproof="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    numpy="2.3.0",
    triton="3.7.1",
    numba="0.61.0",
    xformers=None,
    platform="Linux x86_64",
    cpu="Example CPU",
    cpus=2,
    gpu=None,
    commit="0123abc",
)
COSTS = Costs(allocations=3, allocated_bytes=96, dispatches=7, copies=1, copied_bytes=32)
ASKED = {"build_slot_mapping", "split", "slots"}
replace = msgspec.structs.replace


def beside(path, bench: Bench, environment: Environment = HERE, asked=ASKED):
    """Compare a run of these operations with the baseline in the file."""
    return against(path, bench, environment, asked)


def samples(median_ns: float, seed: int, n: int = 40) -> list[float]:
    random = np.random.default_rng(seed)
    return (median_ns * (1 + 0.01 * random.standard_normal(n))).tolist()


def timing(median_ns: float, seed: int = 0, workload: str = "mixed, 64 requests", **more) -> Timing:
    fields = {
        "operation": "build_slot_mapping",
        "section": "5",
        "candidate": "optimized",
        "lane": "cpu",
        "workload": Workload(name=workload, kind="mixed", requests=64, tokens=900),
        "case_id": "0123456789ab",
        "calls": 10,
        "host_ns": samples(median_ns, seed),
        "costs": COSTS,
    } | more
    return Timing(host=interval(fields["host_ns"]), **fields)


def bench(*timings: Timing, control_ns: float = 70_000, floor: float = 0.01) -> Bench:
    noise = Noise(
        comparisons=9, declared=0, floor=floor, minimum_effect=0.03, clock_resolution_ns=40
    )
    control = samples(control_ns, 99, 20)
    return Bench(timings=list(timings), comparisons=[], untimed=[], noise=noise, control_ns=control)


@pytest.fixture
def path(tmp_path):
    """A baseline of one timing of 20 µs."""
    save(path_of("main", tmp_path / "baselines"), bench(timing(20_000)), HERE)
    return tmp_path / "baselines" / "main.json"


def test_load_returns_what_was_saved(path):
    baseline = load(path)
    assert (baseline.schema, baseline.name, baseline.commit) == (
        "attnproof.baseline/2",
        "main",
        "0123abc",
    )
    [entry] = baseline.entries
    assert entry.host_ns == samples(20_000, 0)
    assert entry.costs == COSTS
    assert [file.name for file in path.parent.iterdir()] == ["main.json"]


@pytest.mark.parametrize("name", ["main", "v0.1", "h200-nightly_2"])
def test_plain_names_are_accepted(name, tmp_path):
    assert path_of(name, tmp_path) == tmp_path / f"{name}.json"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../main", "-x", ".hidden", "a b", "a\n"])
def test_other_names_are_refused(name, tmp_path):
    with pytest.raises(UsageError, match=r"^baseline .*: a name is letters, digits, [^\n]*$"):
        path_of(name, tmp_path)


def test_a_missing_baseline_says_how_to_make_one(tmp_path):
    found = beside(tmp_path / "main.json", bench(timing(20_000)))
    assert found.state == "missing"
    assert found.reason == (
        f"there is no baseline {tmp_path / 'main.json'}; make one with --save-baseline main"
    )
    assert found.regressions == []


def _cut(text: str) -> str:
    return text[: len(text) // 2]


def _changed(**fields: object):
    return lambda text: json.dumps(json.loads(text) | fields)


def _sample(value: object):
    def spoil(text: str) -> str:
        content = json.loads(text)
        content["entries"][0]["host_ns"] = value
        return json.dumps(content)

    return spoil


def _without_schema(text: str) -> str:
    content = json.loads(text)
    del content["schema"]
    return json.dumps(content)


@pytest.mark.parametrize(
    "spoil",
    [
        _cut,
        lambda _: "",
        lambda _: "{}",
        lambda _: "[1, 2]",
        lambda _: "not JSON",
        _changed(schema="something else"),
        _without_schema,
        _changed(control_ns=[]),
        _changed(entries="none"),
        _sample([]),
        _sample([0.0, 1.0]),
        _sample([-5.0]),
        _sample(["fast"]),
    ],
)
def test_damaged_baseline_differs_from_a_missing_one(path, spoil):
    path.write_text(spoil(path.read_text()))
    found = beside(path, bench(timing(20_000)))
    assert found.state == "damaged"
    assert found.reason.startswith(f"baseline {path} is damaged (")
    assert "\n" not in found.reason


def test_a_baseline_of_another_version_says_so(path):
    path.write_text(_changed(schema="attnproof.baseline/1")(path.read_text()))
    found = beside(path, bench(timing(20_000)))
    assert found.state == "damaged"
    assert found.reason == (
        f"baseline {path} has schema 'attnproof.baseline/1', expected 'attnproof.baseline/2'; "
        "make it again with --save-baseline"
    )


def test_bytes_that_are_no_text_are_damage(path):
    path.write_bytes(b'{"schema": "\xff\xfe')
    with pytest.raises(BaselineError) as raised:
        load(path)
    assert raised.value.state == "damaged"


def test_a_folder_in_its_place_is_damage(tmp_path):
    (tmp_path / "main.json").mkdir()
    assert beside(tmp_path / "main.json", bench()).state == "damaged"


def test_the_same_speed_is_no_evidence(path):
    found = beside(path, bench(timing(20_000, seed=1)))
    assert (found.state, found.reason, found.lost) == ("compared", "", [])
    [one] = found.regressions
    assert (one.verdict, one.clock, one.costs) == ("no evidence", "host", "")
    assert one.ratio == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(("now", "said"), [(24_000, "slower"), (15_000, "faster")])
def test_change_gets_a_verdict(path, now, said):
    [one] = beside(path, bench(timing(now, seed=1))).regressions
    assert one.verdict == said
    assert one.low < one.ratio < one.high
    assert one.ratio == pytest.approx(now / 20_000, rel=0.02)


def test_change_below_the_difference_of_two_runs_is_no_evidence(path):
    [one] = beside(path, bench(timing(21_400, seed=1))).regressions
    assert one.p_value < 0.001
    assert one.verdict == "no evidence"


def test_a_slower_machine_is_not_a_slower_function(path):
    now = bench(timing(30_000, seed=1), control_ns=105_000)
    found = beside(path, now)
    assert found.control == pytest.approx(1.5, rel=0.02)
    [one] = found.regressions
    assert one.ratio == pytest.approx(1, abs=0.03)
    assert one.verdict == "no evidence"


def test_a_faster_machine_does_not_hide_a_slower_function(path):
    now = bench(timing(20_000, seed=1), control_ns=50_000)
    [one] = beside(path, now).regressions
    assert one.verdict == "slower"


@pytest.mark.parametrize("loud", ["before", "now"])
def test_the_larger_noise_floor_of_both_runs_holds(tmp_path, loud):
    save(tmp_path / "m.json", bench(timing(20_000), floor=0.4 if loud == "before" else 0), HERE)
    now = bench(timing(24_000, 1), floor=0.4 if loud == "now" else 0)
    [one] = beside(tmp_path / "m.json", now).regressions
    assert one.verdict == "no evidence"


@pytest.mark.parametrize(
    ("field", "value"),
    [("cpu", "Another CPU"), ("cpus", 64), ("numba", None), ("python", "3.12.1"), ("gpu", "H200")],
)
def test_another_machine_is_named_and_its_times_are_not_compared(path, field, value):
    elsewhere = replace(HERE, **{field: value})
    found = beside(path, bench(timing(90_000, seed=1)), elsewhere)
    assert found.state == "another machine"
    was = getattr(HERE, field)
    assert found.reason == f"baseline main is of another machine: {field} {was}, here {value}"
    assert found.regressions == []


def test_exact_counts_are_compared_on_another_machine_too(path):
    more = replace(COSTS, allocations=4, copied_bytes=64)
    elsewhere = replace(HERE, cpu="Another CPU")
    [one] = beside(path, bench(timing(90_000, costs=more)), elsewhere).regressions
    assert one.costs == "allocations 3 to 4, copied bytes 32 to 64"
    assert one.verdict == "no evidence"


def test_counts_of_another_pytorch_are_not_compared(path):
    more = replace(COSTS, dispatches=9)
    elsewhere = replace(HERE, torch="2.12.0")
    assert beside(path, bench(timing(20_000, costs=more)), elsewhere).regressions == []


def test_counts_that_fall_have_not_grown():
    assert grown_costs(COSTS, replace(COSTS, allocations=0)) == ""
    assert grown_costs(COSTS, replace(COSTS, launches=2)) == ""  # not known before
    on_gpu = replace(COSTS, launches=1, syncs=0)
    assert grown_costs(on_gpu, replace(on_gpu, syncs=1)) == "syncs 0 to 1"


def test_a_timing_that_is_lost_is_named(path):
    found = beside(path, bench(timing(20_000, workload="mixed, 8 requests")))
    assert found.lost == ["build_slot_mapping / optimized / mixed, 64 requests"]
    assert found.regressions == []


def test_a_timing_of_another_input_is_lost(path):
    found = beside(path, bench(timing(20_000, case_id="ba9876543210")))
    assert len(found.lost) == 1


def test_device_times_are_compared_without_the_control(tmp_path):
    """The control is work of the host."""
    save(tmp_path / "m.json", bench(timing(20_000, device_ns=samples(5000, 5))), HERE)
    now = timing(40_000, 1, device_ns=samples(5000, 6))
    found = beside(tmp_path / "m.json", bench(now, control_ns=140_000))
    assert [(one.clock, one.verdict) for one in found.regressions] == [
        ("host", "no evidence"),
        ("device", "no evidence"),
    ]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InfrastructureError, match=r"could not be written: [^\n]*$"):
        save(tmp_path / "file" / "main.json", bench(timing(1000)), HERE)


def test_saving_again_replaces_the_whole_file(path):
    save(path, bench(timing(30_000, workload="decode, 1 request")), HERE)
    assert [entry.workload for entry in load(path).entries] == ["decode, 1 request"]


def judged(path, *timings: Timing, **more) -> Bench:
    """A run with its comparison with the baseline."""
    made = bench(*timings, **more)
    return replace(made, baseline=beside(path, made))


def test_timing_that_is_not_slower_when_repeated_is_not_slower(path):
    loud, calm = (judged(path, timing(ns, seed=1)) for ns in (30_000, 20_000))
    found = confirm(loud, calm)
    assert found.baseline.not_confirmed == 1
    assert found.baseline.regressions == calm.baseline.regressions
    assert found.timings == calm.timings


@pytest.mark.parametrize(
    "again",
    [[timing(28_000, seed=2)], [], [timing(30_000, 2, host_ns=samples(30_000, 2, 4))]],
    ids=["slower", "not timed", "few samples"],
)
def test_timing_that_is_slower_again_or_not_repeated_stays_slower(path, again):
    first, second = judged(path, timing(30_000, seed=1)), judged(path, *again)
    found = confirm(first, second)
    assert found.baseline.not_confirmed == 0
    [one] = slower(found.baseline)
    assert one.ratio == pytest.approx(1.5, rel=0.02)
    assert found.timings == [timing(30_000, seed=1)]


def test_grown_counts_stay_when_the_repeat_is_not_slower(path):
    more = replace(COSTS, allocations=4)
    loud = judged(path, timing(30_000, seed=1, costs=more))
    [one] = confirm(loud, judged(path, timing(20_000, seed=2))).baseline.regressions
    assert (one.verdict, one.costs) == ("no evidence", "allocations 3 to 4")


def test_timing_of_an_operation_not_asked_for_is_not_lost(path):
    assert beside(path, bench(), HERE, {"split_attn_metadata"}).lost == []


def stepping(
    factors=(1.0,) * 8, seed: int = 0, operations=("split", "slots"), case_id: str = "a"
) -> Bench:
    """A run of as many engine steps as factors, whose times differ by up to ten times."""
    steps = [
        Step(
            source=f"step {n}",
            case_id=f"{case_id}{n}",
            requests=8,
            tokens=n,
            ns=samples(factor * 1000 * (1 + n), seed + n),
        )
        for n, factor in enumerate(factors)
    ]
    of = Steps(trace="azure", candidate="optimized", operations=operations, steps=steps)
    return replace(bench(), steps=[of])


@pytest.fixture
def steps(tmp_path):
    """A baseline of whole engine steps."""
    save(tmp_path / "steps.json", stepping(), HERE)
    return tmp_path / "steps.json"


@pytest.mark.parametrize(
    ("factors", "said", "mean"),
    [
        ([1.0] * 8, "no evidence", 1.0),
        ([1.25] * 8, "slower", 1.25),
        ([0.8] * 8, "faster", 0.8),
        ([1.0] * 5 + [3.0] * 3, "slower", 3 ** (3 / 8)),
    ],
)
def test_steps_are_compared_by_their_geometric_mean(steps, factors, said, mean):
    found = beside(steps, stepping(factors, 70))
    assert found.lost == []
    [one] = found.regressions
    assert (one.operation, one.workload, one.candidate) == ("whole step", "azure", "optimized")
    assert one.verdict == said
    assert one.ratio == pytest.approx(mean, rel=0.02)


def test_steps_of_another_machine_are_not_compared(steps):
    found = beside(steps, stepping([2.0] * 8), replace(HERE, cpu="Another CPU"))
    assert found.regressions == []


LABEL = "whole step / optimized / azure (split, slots)"


@pytest.mark.parametrize("changed", [{"operations": ("split",)}, {"case_id": "b"}])
def test_steps_of_other_work_are_lost(steps, changed):
    found = beside(steps, stepping(**changed))
    assert found.regressions == []
    [lost] = found.lost
    assert lost.startswith(LABEL)


def test_fewer_steps_are_compared_and_the_others_lost(steps):
    found = beside(steps, stepping([1.0] * 6, 70))
    assert len(found.regressions) == 1
    assert found.lost == [f"{LABEL}, 2 of 8 steps"]


def test_lost_steps_are_named_if_they_were_asked_for(steps):
    assert beside(steps, bench()).lost == [LABEL]
    assert beside(steps, bench(), HERE, {"split"}).lost == []


def test_repeated_steps_replace_those_that_looked_slower(steps):
    loud, calm = stepping([1.5] * 8, 70), stepping([1.0] * 8, 90)
    loud, calm = (replace(run, baseline=beside(steps, run)) for run in (loud, calm))
    assert len(slower(loud.baseline)) == 1
    found = confirm(loud, calm)
    assert slower(found.baseline) == []
    assert found.steps == calm.steps
