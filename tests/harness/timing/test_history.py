"""The history holds the comparable baselines of a folder only."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.model.run import Environment
from attnproof.harness.model.timing import Bench, Costs, Interval, Noise, Timing, Workload
from attnproof.harness.timing.analysis import history
from attnproof.harness.timing.analysis.baseline import load, save

ENVIRONMENT = Environment(
    attnproof="0.1.0",
    python="3.11.7",
    torch="2.13.0",
    numpy="2.3.0",
    triton=None,
    numba=None,
    xformers=None,
    platform="Linux x86_64",
    cpu="Example CPU",
    cpus=2,
    gpu=None,
    commit="0123abc",
)
NOISE = Noise(comparisons=9, declared=0, floor=0.01, minimum_effect=0.05, clock_resolution_ns=40)


def bench(ns: float, case_id: str = "abc", control_ns: float = 50.0) -> Bench:
    timing = Timing(
        operation="build_slot_mapping",
        section="5",
        candidate="optimized",
        lane="cpu",
        workload=Workload(name="decode, 8 requests", kind="decode", requests=8, tokens=8),
        case_id=case_id,
        calls=10,
        host_ns=[ns, ns + 1, ns + 2],
        host=Interval(median_ns=ns + 1, low_ns=ns, high_ns=ns + 2, samples=3),
        costs=Costs(allocations=1, allocated_bytes=8, dispatches=1, copies=0, copied_bytes=0),
    )
    return Bench(
        timings=[timing], comparisons=[], untimed=[], noise=NOISE, control_ns=[control_ns] * 3
    )


@pytest.fixture
def folder(tmp_path):
    """Two baselines of this machine, saved in the order of their names."""
    for name, ns, created in (("young", 200.0, "2025-02-01"), ("old", 300.0, "2025-01-01")):
        path = tmp_path / f"{name}.json"
        save(path, bench(ns, control_ns=ns / 4), ENVIRONMENT)
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(load(path), created=created)))
    return tmp_path


def test_the_oldest_comes_first(folder):
    found = history.read(folder, bench(100.0), ENVIRONMENT)
    assert [past.name for past in found] == ["old", "young"]
    assert found[0].medians_ns == {"build_slot_mapping / optimized / decode, 8 requests": 301.0}
    assert [past.control_ns for past in found] == [75.0, 50.0]
    assert found[0].commit == "0123abc"


def test_baselines_of_another_machine_are_left_out(folder):
    other = msgspec.structs.replace(ENVIRONMENT, cpu="Another CPU")
    assert history.read(folder, bench(100.0), other) == []


def test_another_input_under_the_same_name_is_another_timing(folder):
    assert history.read(folder, bench(100.0, case_id="def"), ENVIRONMENT) == []


def test_damaged_files_and_missing_folders_are_skipped(folder, tmp_path):
    (folder / "old.json").write_text("{")
    assert [past.name for past in history.read(folder, bench(1.0), ENVIRONMENT)] == ["young"]
    assert history.read(tmp_path / "none", bench(1.0), ENVIRONMENT) == []
