"""The tables for documents hold every timing once, under the command that made them."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.report.formats.bench_markdown import bench_markdown
from attnproof.harness.report.shared.quantities import TIMES, ratio_text, time_text
from tests.harness.report.runs import with_bench


def tables(run):
    """The tables as lists of rows of cells."""
    parts = [part.splitlines() for part in bench_markdown(run).split("\n\n")]
    rows = [[line for line in part if not line.startswith("|---")] for part in parts]
    return [[line.strip("| ").split(" | ") for line in part] for part in rows if part[0][0] == "|"]


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


def test_each_comparison_on_a_drawn_batch_has_its_cell(timed):
    text = bench_markdown(timed)
    medians = {(t.operation, t.workload.name, t.candidate): t for t in timed.bench.timings}
    drawn = 0
    for compared in timed.bench.comparisons:
        timing = medians[compared.operation, compared.workload, compared.candidate]
        if timing.workload.kind not in ("trace", "model") and compared.clock == "host":
            drawn += 1
            cell = f"{ratio_text(compared.ratio)}, {time_text(timing.host.median_ns)}"
            assert cell in text
    assert drawn > 10


def test_cells_that_are_not_faster_are_marked(timed):
    marked = sum(cell.startswith("▼") for table in tables(timed) for row in table for cell in row)
    slower = [c for c in timed.bench.comparisons if c.verdict == "slower" and c.clock == "host"]
    workloads = {t.workload.name: t.workload.kind for t in timed.bench.timings}
    assert marked == sum(workloads[c.workload] in ("decode", "mixed", "prefill") for c in slower)
    assert marked


def test_all_rows_of_a_table_have_as_many_cells_as_its_heading(timed):
    for line in bench_markdown(timed).splitlines():
        if line.startswith("| optimized, host | requests"):
            width = line.count("|")
        elif line.startswith("| optimized, host | on"):
            width = 6
        elif line.startswith("| steps of"):
            width = 7
        elif line.startswith("|"):
            assert line.count("|") == width


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
