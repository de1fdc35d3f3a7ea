"""The tables for documents: the command, the machine, a candidate alone, the steps."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.report.formats.bench_markdown import bench_markdown
from attnproof.harness.report.shared.quantities import TIMES
from tests.harness.report.runs import with_bench


@pytest.fixture
def alone(timed):
    """A run of one candidate without a peer."""
    mine = [timing for timing in timed.bench.timings if timing.candidate == "optimized"]
    return with_bench(timed, timings=mine, comparisons=[], steps=[])


def test_it_begins_with_the_command_and_the_peer(timed):
    timed.settings["compared with"] = "vllm 0.10.2"
    first = bench_markdown(timed).splitlines()[0]
    assert first.startswith(f"Made by `{timed.command}`")
    assert "how many times as fast as vllm 0.10.2" in first


def test_a_run_outside_a_repository_has_an_unknown_commit(timed):
    environment = msgspec.structs.replace(timed.environment, commit=None)
    run = msgspec.structs.replace(timed, environment=environment)
    assert "commit unknown" in bench_markdown(run).splitlines()[0]


def test_the_gpu_is_part_of_the_machine(timed):
    environment = msgspec.structs.replace(timed.environment, gpu="Example GPU")
    timed = msgspec.structs.replace(timed, environment=environment)
    assert "cores, Example GPU, torch " in bench_markdown(timed).splitlines()[0]


def test_a_candidate_alone_has_times_without_ratios(alone):
    text = bench_markdown(alone)
    assert "Median times.\n" in text
    assert "µs |" in text
    assert f"{TIMES}," not in text


def test_each_choice_of_operations_in_a_step_is_listed(timed):
    first = timed.bench.steps[0]
    other = msgspec.structs.replace(
        first, trace="another", operations=("swap_blocks",), left_out={"copy_blocks": "not here"}
    )
    timed.bench.steps.append(other)
    text = bench_markdown(timed)
    assert "A step is `build_slot_mapping`, `split_attn_metadata`." in text
    assert "A step is `swap_blocks`." in text
    assert "- not part of a step: copy_blocks (not here)" in text
