"""Compare the scheduler with a measured vLLM run, and fit the cost of an engine step to it.

`python tools/scheduler_validation.py DIRECTORY [--fit [--until SECONDS]]` prints the
errors that docs/scheduler.md quotes. The directory contains requests.jsonl, timeseries.csv
and meta.json as LLMServingSim's bench writes them.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from attnproof.harness.cases.scheduler.config import SchedulerConfig, StepCost
from attnproof.harness.cases.scheduler.scheduler import Scheduler
from attnproof.harness.cases.traces.reading import read_trace

SERIES = ("running", "waiting", "kv_cache_pct")
TIMES = ("scheduled", "first_token", "finished")
_TICK_OFFSET_S = 0.12
"""Time between the first tick and the first request, in seconds: with this value, the queue
counts and prompt throughput of the request records agree best with the series."""

_COEFFICIENTS = ("fixed_s", "decode_request_s")
"""Coefficients to fit: a run whose cache is always full does not determine the other two."""
FIT_START = StepCost(
    fixed_s=0.016, prefill_token_s=90e-6, decode_request_s=20e-6, kv_token_s=0.13e-6
)
"""Start of the fit. fixed_s and kv_token_s: 16.06 GB of weights and 131,072 bytes of KV a
token over a memory bandwidth of 1,008 GB/s. prefill_token_s: engine steps of 2,048 prompt
tokens at the start of the run take 0.20 s each. decode_request_s is a guess."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Run(msgspec.Struct, frozen=True):
    """Series by tick of one second and times by request, measured or from our scheduler."""

    series: dict[str, Floats]
    """Each of SERIES at every tick."""
    times: dict[str, Floats]
    """Each of TIMES in seconds after the first request was queued, in file order."""


class Error(msgspec.Struct, frozen=True):
    """Error of a scheduled quantity relative to the measured one."""

    name: str
    mean_absolute: float
    relative: float
    """Mean absolute error divided by the measured mean."""
    correlation: float
    """Pearson correlation of both."""


def measured_run(directory: Path) -> Run:
    """Return the measured run of vLLM."""
    with (directory / "timeseries.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = (directory / "requests.jsonl").read_text().splitlines()
    records = [msgspec.json.decode(line) for line in lines]
    start = min(record["queued_ts"] for record in records)
    fields = ("scheduled_ts", "first_token_ts", "last_token_ts")
    return Run(
        {name: np.array([float(row[name]) for row in rows]) for name in SERIES},
        {
            name: np.array([record[field] - start for record in records])
            for name, field in zip(TIMES, fields, strict=True)
        },
    )


def measured_config(directory: Path, cost: StepCost | None = None) -> SchedulerConfig:
    """Return the configuration that the measured engine reported."""
    meta = msgspec.json.decode((directory / "meta.json").read_bytes())
    engine, cache = meta["engine_kwargs"], meta["kv_cache"]
    scheduler = meta["resolved_config"]["scheduler_config"]
    return SchedulerConfig(
        block_size=cache["block_size"],
        num_blocks=cache["num_gpu_blocks"],
        max_num_seqs=engine["max_num_seqs"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        max_model_len=engine["max_model_len"],
        long_prefill_token_threshold=scheduler["long_prefill_token_threshold"],
        enable_prefix_caching=cache["enable_prefix_caching"],
        scheduler_reserve_full_isl=scheduler["scheduler_reserve_full_isl"],
        cost=cost or StepCost(),
        engine="0.11",
    )


def scheduled_run(directory: Path, num_ticks: int, cost: StepCost | None = None) -> Run:
    """Return the run of our scheduler with the same requests, arrivals and limits."""
    requests = read_trace(directory / "requests.jsonl", format="vllm-bench")
    schedule = Scheduler(requests, measured_config(directory, cost))
    starts, rows = [-1.0], [(0.0, 0.0, 0.0)]
    for step in schedule:
        used = 1 - step.num_free_blocks / schedule.pool.size
        starts.append(step.start_s)
        rows.append((step.num_running, step.num_waiting, 100 * used))
    starts.append(schedule.clock_s)
    rows.append((0, 0, 0))
    ticks = np.arange(1, num_ticks + 1) - _TICK_OFFSET_S
    at_tick = np.array(rows)[np.searchsorted(starts, ticks, side="right") - 1]
    served = sorted(schedule.served, key=lambda request: request.request)
    return Run(
        dict(zip(SERIES, at_tick.T, strict=True)),
        {name: np.array([getattr(r, f"{name}_s") for r in served]) for name in TIMES},
    )


def errors(measured: Run, scheduled: Run) -> list[Error]:
    """Return the error of each series and each time."""
    pairs = [(name, measured.series[name], scheduled.series[name]) for name in SERIES]
    pairs += [(f"{name}_s", measured.times[name], scheduled.times[name]) for name in TIMES]
    error_list = []
    for name, truth, ours in pairs:
        absolute = float(np.abs(truth - ours).mean())
        correlation = float(np.corrcoef(truth, ours)[0, 1])
        error_list.append(Error(name, absolute, absolute / float(truth.mean()), correlation))
    return error_list


def between(run: Run, start: float, stop: float, measured: Run) -> Run:
    """Return the ticks in [start, stop) of a run and the requests measured to finish then."""
    ticks = np.arange(1, len(run.series[SERIES[0]]) + 1)
    finished = measured.times["finished"]
    of_ticks = (ticks >= start) & (ticks < stop)
    of_requests = (finished >= start) & (finished < stop)
    return Run(
        {name: values[of_ticks] for name, values in run.series.items()},
        {name: values[of_requests] for name, values in run.times.items()},
    )


def loss(directory: Path, measured: Run, cost: StepCost, until: float = math.inf) -> float:
    """Return the loss of the fit: the sum of relative errors of queues and finishing times."""
    scheduled = scheduled_run(directory, len(measured.series["running"]), cost)
    parts = [between(run, 0, until, measured) for run in (measured, scheduled)]
    in_loss = ("running", "waiting", "finished_s")
    return sum(error.relative for error in errors(*parts) if error.name in in_loss)


def fit(directory: Path, until: float = math.inf) -> StepCost:
    """Return the cost with the least loss over the first `until` seconds of the run.

    Change one coefficient at a time by smaller and smaller factors while the loss decreases.
    """
    measured = measured_run(directory)
    best = FIT_START
    least = loss(directory, measured, best, until)
    for factor in (1.5, 1.2, 1.08, 1.03):
        improved = True
        while improved:
            improved = False
            for name, ratio in product(_COEFFICIENTS, (factor, 1 / factor)):
                trial = msgspec.structs.replace(best, **{name: getattr(best, name) * ratio})
                trial_loss = loss(directory, measured, trial, until)
                if trial_loss < least - 1e-4:
                    best, least, improved = trial, trial_loss, True
    return best


def table(measured: Run, scheduled: Run) -> str:
    """Return the errors as text."""
    lines = [f"{'':16}{'mean measured':>14}{'mean abs. error':>17}{'relative':>10}{'r':>8}"]
    values = {**measured.series, **{f"{name}_s": v for name, v in measured.times.items()}}
    lines += [
        f"{error.name:16}{values[error.name].mean():14.2f}{error.mean_absolute:17.2f}"
        f"{error.relative:10.1%}{error.correlation:8.4f}"
        for error in errors(measured, scheduled)
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the cost and the table of errors; with --until, only of the time after the fit."""
    parser = argparse.ArgumentParser(description="Compare the scheduler with a measured vLLM run.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fit", action="store_true", help="fit the cost first (a minute)")
    parser.add_argument(
        "--until",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="fit to the run before this second only, and show errors after it",
    )
    options = parser.parse_args(arguments)
    cost = StepCost()
    if options.fit:
        cost = fit(options.directory, options.until or math.inf)
    measured = measured_run(options.directory)
    scheduled = scheduled_run(options.directory, len(measured.series["running"]), cost)
    parts = [between(run, options.until, math.inf, measured) for run in (measured, scheduled)]
    print(cost)
    print(table(*parts))


if __name__ == "__main__":
    main()
