"""Batches of a trace under several engine configurations."""

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
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.case import EngineStep

ENGINES: dict[str, SchedulerConfig] = {
    "default": SchedulerConfig(max_num_seqs=64),
    # The cache barely holds the longest sequence, which causes preemptions; the small token
    # budget cuts prompts into many chunks.
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
        later=True,
        capture_sizes=VLLM_CAPTURE_SIZES,
    ),
    # Block size of an MLA backend. Several prompts share an engine step, which puts decodes
    # after prefills.
    "large-pages": SchedulerConfig(
        block_size=128,
        num_blocks=1024,
        max_num_seqs=64,
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=256,
        enable_prefix_caching=False,
        sliding_window=1024,
        later=True,
    ),
}
"""Engines that are used if no configuration is given. Sequences have at most 32,768 tokens
and caches 32,784 to 131,056, which bounds the size of a case."""
MAX_REQUESTS = 600
"""Requests of a trace that each engine schedules by default."""
MAX_STEPS = 4000
"""Engine steps after which a schedule stops by default."""


class TraceBatches(msgspec.Struct, frozen=True):
    """Chosen engine steps of a trace."""

    batches: tuple[EngineStep, ...]
    """Rarest structure first, engines alternating, so any prefix is a good selection too."""
    summary: str
    """One line with the number of chosen and scheduled engine steps, engines and requests."""


def batches_from_trace(
    path: str | Path,
    count: int = 200,
    seed: int = 0,
    config: SchedulerConfig | None = None,
    *,
    format: TraceFormat | None = None,  # noqa: A002  (the documented name)
    rate: float = DEFAULT_RATE,
    max_requests: int = MAX_REQUESTS,
    max_steps: int = MAX_STEPS,
    max_blocks: int = MAX_BLOCKS,
) -> TraceBatches:
    """Choose `count` engine steps of a trace, rarest structure first; raise TraceError.

    Each engine schedules at most `max_requests` consecutive requests and `max_steps` engine
    steps (0 for no limit). They begin at the trace's first request for seed 0, else at a
    drawn one. Without `config` the engines of `ENGINES` are used. The seed also draws
    speculative tokens, and arrivals for traces without any (`rate` requests per second).
    """
    requests = read_trace(path, format=format, rate=rate, seed=seed)
    return batches_from_requests(
        requests,
        escape_line(Path(path).name),
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
    """Choose engine steps as `batches_from_trace` does; every source begins with `name`."""
    engines = {"": config} if config else ENGINES
    chosen: list[list[EngineStep]] = []
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
                EngineStep(batch, f"{name}#{','.join([*marks, f'step={step_index}'])}")
                for step_index, batch in reservoir.choose(max(share, 0))
            ]
        )
        steps += schedule.counts.steps
        signatures += len(reservoir.seen)
        too_large += reservoir.too_large
        scheduled += len(window)
    batches = _interleaved(chosen)
    summary = (
        f"{name}: {len(batches)} of {steps} steps ({signatures} structures) of {len(engines)} "
        f"engine(s), {scheduled // len(engines)} of {len(requests)} requests each"
        + (f"; {too_large} steps above {max_blocks} blocks skipped" if too_large else "")
    )
    return TraceBatches(batches, summary)


def _window_start(total: int, length: int, seed: int, place: int) -> int:
    """Return the index of the first scheduled request: 0 for seed 0, else drawn."""
    if not seed or not length or length >= total:
        return 0
    return int(np.random.default_rng((seed, place)).integers(total - length + 1))


def _window(requests: Sequence[TraceRequest], first: int, length: int) -> list[TraceRequest]:
    window = requests[first : first + length] if length else requests
    start = window[0].arrival_s if window else 0.0
    return [msgspec.structs.replace(r, arrival_s=r.arrival_s - start) for r in window]


def _interleaved(lists: list[list[EngineStep]]) -> tuple[EngineStep, ...]:
    longest = max(map(len, lists), default=0)
    return tuple(items[i] for i in range(longest) for items in lists if i < len(items))
