"""The scheduler's errors against a measured vLLM run stay near those of docs/scheduler.md."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "scheduler_validation.py"
_spec = importlib.util.spec_from_file_location("scheduler_validation", TOOL)
validation = sys.modules["scheduler_validation"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(validation)

BOUNDS = {
    # Largest relative mean absolute error, smallest correlation.
    "running": (0.06, 0.96),
    "waiting": (0.03, 0.998),
    "kv_cache_pct": (0.03, 0.98),
    "scheduled_s": (0.02, 0.997),
    "first_token_s": (0.02, 0.997),
    "finished_s": (0.015, 0.998),
}


@pytest.fixture(scope="module")
def directory(traces: Path) -> Path:
    return traces / "vllm_runs" / "RTX4090_Llama-3.1-8B"


def test_errors_stay_within_bounds(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = validation.measured_run(directory)
    scheduled = validation.scheduled_run(directory, len(measured.series["running"]))
    print(validation.table(measured, scheduled))
    for error in validation.errors(measured, scheduled):
        relative, correlation = BOUNDS[error.name]
        assert error.relative <= relative, error
        assert error.correlation >= correlation, error


def test_configuration_is_that_of_the_measured_engine(directory: Path) -> None:
    config = validation.measured_config(directory)
    assert (config.num_blocks, config.block_size) == (2588, 16)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == (256, 2048)
    assert config.enable_prefix_caching
    assert config.scheduler_reserve_full_isl


def test_part_of_a_run_begins_and_ends_at_the_given_times(directory: Path) -> None:
    measured = validation.measured_run(directory)
    part = validation.between(measured, 92, math.inf, measured)
    assert len(part.series["running"]) == 184 - 91
    assert part.times["finished"].min() >= 92


def test_command_prints_the_cost_and_a_row_per_quantity(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    validation.main([str(directory)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("StepCost(fixed_s=")
    assert [line.split()[0] for line in lines[2:]] == list(BOUNDS)


@pytest.mark.slow
def test_a_fit_to_the_first_half_predicts_the_second(directory: Path) -> None:
    half = 92.0
    cost = validation.fit(directory, half)
    measured = validation.measured_run(directory)
    scheduled = validation.scheduled_run(directory, len(measured.series["running"]), cost)
    parts = [validation.between(run, half, math.inf, measured) for run in (measured, scheduled)]
    assert all(error.relative <= 0.07 for error in validation.errors(*parts))
