"""Batches of a trace as real engines of several configurations would run it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from attnproof.harness.cases.scheduler.config import VLLM_CAPTURE_SIZES, SchedulerConfig
from attnproof.harness.cases.scheduler.scheduler import Scheduler
from attnproof.harness.cases.steps.selection import MAX_BLOCKS, StepReservoir
from attnproof.harness.cases.traces.formats import TraceFormat, TraceRequest
from attnproof.harness.cases.traces.reading import DEFAULT_RATE, read_trace
from attnproof.harness.model.case import Batch

ENGINES: dict[str, SchedulerConfig] = {
    "default": SchedulerConfig(max_num_seqs=64),
    # Just room for the longest sequence: preemptions; small steps: prompts in many pieces.
    "tight": SchedulerConfig(
        num_blocks=2050,
        max_num_seqs=256,
        max_num_batched_tokens=512,
        capture_sizes=VLLM_CAPTURE_SIZES,
    ),
    "speculative": SchedulerConfig(
        block_size=32,
        num_blocks=4096,
        max_num_seqs=64,
        num_speculative_tokens=3,
        draft_rate=0.9,
        capture_sizes=VLLM_CAPTURE_SIZES,
    ),
    # Pages of an MLA backend; several prompts share a step, so decodes lie behind prefills.
    "large-pages": SchedulerConfig(
        block_size=128,
        num_blocks=1024,
        max_num_seqs=64,
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=256,
        enable_prefix_caching=False,
    ),
}
"""Engines that share the choice when no configuration is given: 32,768 tokens a sequence at
most, and caches of 32,784 to 131,056 tokens, which bounds the size of a case."""
MAX_REQUESTS = 600
MAX_STEPS = 4000


class TraceBatch(msgspec.Struct, frozen=True):
    """A batch and the step it was."""

    batch: Batch
    source: str
    """Such as `trace.csv#step=123`, or `trace.csv#tight,from=512,step=123`."""


class TraceBatches(msgspec.Struct, frozen=True):
    """The chosen steps of a trace."""

    batches: tuple[TraceBatch, ...]
    """Rarest structure first, engines in turn: any beginning is a fair choice too."""
    summary: str
    """One line: how much of the trace was scheduled, and what it was chosen from."""


def batches_from_trace(
    path: str | Path,
    count: int = 200,
    seed: int = 0,
    config: SchedulerConfig | None = None,
    *,
    format: TraceFormat | None = None,  # noqa: A002  (the name users know)
    rate: float = DEFAULT_RATE,
    max_requests: int = MAX_REQUESTS,
    max_steps: int = MAX_STEPS,
    max_blocks: int = MAX_BLOCKS,
) -> TraceBatches:
    """`count` steps of a trace, rarest structure first; raises TraceError.

    To be quick, each engine schedules only `max_requests` requests in a row and stops after
    `max_steps` steps (0 for no such limit). Where the row begins depends on the seed: with
    seed 0 at the trace's first request. Without a configuration the engines of `ENGINES` take
    part. The seed also draws speculative tokens, and arrivals for traces without any (`rate`
    requests per second).
    """
    requests = read_trace(path, format=format, rate=rate, seed=seed)
    return batches_from_requests(
        requests,
        Path(path).name,
        count,
        seed,
        config,
        max_requests=max_requests,
        max_steps=max_steps,
        max_blocks=max_blocks,
    )


def batches_from_requests(
    requests: Sequence[TraceRequest],
    name: str,
    count: int = 200,
    seed: int = 0,
    config: SchedulerConfig | None = None,
    *,
    max_requests: int = MAX_REQUESTS,
    max_steps: int = MAX_STEPS,
    max_blocks: int = MAX_BLOCKS,
) -> TraceBatches:
    """As `batches_from_trace`, for requests at hand; `name` begins every source."""
    engines = {"": config} if config else ENGINES
    chosen: list[list[TraceBatch]] = []
    steps = signatures = too_large = scheduled = 0
    for place, (engine, engine_config) in enumerate(engines.items()):
        first = _window_start(len(requests), max_requests, seed, place)
        window = _window(requests, first, max_requests)
        reservoir = StepReservoir(count, seed, max_blocks=max_blocks)
        schedule = Scheduler(window, msgspec.structs.replace(engine_config, seed=seed))
        for step in islice(schedule, max_steps or None):
            reservoir.offer(step)
        marks = [engine] * bool(engine) + [f"from={first}"] * bool(first)
        share = math.ceil((count - place) / len(engines))
        chosen.append(
            [
                TraceBatch(batch, f"{name}#{','.join([*marks, f'step={step_index}'])}")
                for step_index, batch in reservoir.choose(max(share, 0))
            ]
        )
        steps += schedule.counts.steps
        signatures += len(reservoir.seen)
        too_large += reservoir.too_large
        scheduled += len(window)
    batches = _in_turn(chosen)
    summary = (
        f"{name}: {len(batches)} of {steps} steps ({signatures} structures) of {len(engines)} "
        f"engine(s), {scheduled // len(engines)} of {len(requests)} requests each"
        + (f"; {too_large} steps above {max_blocks} blocks passed over" if too_large else "")
    )
    return TraceBatches(batches, summary)


def _window_start(total: int, length: int, seed: int, place: int) -> int:
    """Where the scheduled requests begin: at the first with seed 0, else drawn by the seed."""
    if not seed or not length or length >= total:
        return 0
    return int(np.random.default_rng((seed, place)).integers(total - length + 1))


def _window(requests: Sequence[TraceRequest], first: int, length: int) -> list[TraceRequest]:
    window = requests[first : first + length] if length else requests
    start = window[0].arrival_s if window else 0.0
    return [msgspec.structs.replace(r, arrival_s=r.arrival_s - start) for r in window]


def _in_turn(lists: list[list[TraceBatch]]) -> tuple[TraceBatch, ...]:
    longest = max(map(len, lists), default=0)
    return tuple(items[i] for i in range(longest) for items in lists if i < len(items))
