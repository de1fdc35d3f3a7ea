"""Batches to time: synthetic ones and engine steps of traces, determined by the seed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, Literal, NamedTuple

import numpy as np

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.scheduler import Scheduler
from attnproof.harness.cases.steps.sampler import sample_requests
from attnproof.harness.cases.traces.formats import TraceRequest
from attnproof.harness.cases.traces.reading import read_trace
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.case import Batch
from attnproof.harness.model.timing import Workload

Kind = Literal["decode", "mixed", "prefill"]
REQUESTS: Final = (1, 8, 64, 256, 1024)
KINDS: Final[tuple[Kind, ...]] = ("decode", "mixed", "prefill")
BLOCK_SIZE: Final = 16
_LONGEST = 8192
"""Maximum tokens of a sequence."""
_QUERY = (16, 256)
"""Minimum and maximum query tokens of a prefill."""
_SHARING = 0.25
"""Share of the requests that begin with blocks of another request."""
_ENGINE = SchedulerConfig(max_num_seqs=256, num_blocks=16384)
_TRACE_REQUESTS, _TRACE_STEPS = 1500, 6000
MOST_BLOCKS: Final = 60_000
"""Maximum number of live blocks of a step that is timed."""


class TimedBatch(NamedTuple):
    """A batch to time, with its workload."""

    workload: Workload
    batch: Batch


def synthetic_batches(seed: int = 0) -> Iterator[TimedBatch]:
    """Yield a batch of every kind for every number of requests."""
    for requests in REQUESTS:
        for kind in KINDS:
            count = "1 request" if requests == 1 else f"{requests} requests"
            yield timed_batch(f"{kind}, {count}", kind, make_step(kind, requests, seed))


def timed_batch(name: str, kind: Literal[Kind, "trace", "recorded"], batch: Batch) -> TimedBatch:
    """Make a workload of a name, a kind and a batch."""
    size = {"requests": batch.num_requests, "tokens": batch.num_tokens}
    return TimedBatch(Workload(name=name, kind=kind, **size), batch)


def make_step(kind: Kind, requests: int, seed: int = 0) -> Batch:
    """Draw the batch of an engine step, decodes first; in a mixed one every eighth is a prefill.

    Contexts are log-uniform up to 8,192 tokens, blocks shuffled, some prefixes shared.
    """
    random = np.random.default_rng([seed, requests, KINDS.index(kind)])
    query = np.ones(requests, np.int64)
    prefills = {"decode": 0, "mixed": max(1, requests // 8), "prefill": requests}[kind]
    if prefills:
        query[-prefills:] = _log_uniform(random, *_QUERY, prefills)
    computed = _log_uniform(random, 1, _LONGEST - _QUERY[1], requests)
    if kind == "prefill":
        computed[random.random(requests) < 0.5] = 0
    return Batch(
        block_size=BLOCK_SIZE,
        query_lens=tuple(query.tolist()),
        computed_lens=tuple(computed.tolist()),
        blocks=_blocks(random, query, computed),
    )


def _log_uniform(random: np.random.Generator, low: int, high: int, count: int) -> np.ndarray:
    drawn: np.ndarray = np.exp(random.uniform(np.log(low), np.log(high), count)).astype(np.int64)
    return drawn


def _blocks(
    random: np.random.Generator, query: np.ndarray, computed: np.ndarray
) -> tuple[tuple[int, ...], ...]:
    """Draw shuffled block ids of each request; some begin with another request's full blocks."""
    counts = -(-(query + computed) // BLOCK_SIZE)
    # Block 0 is the engine's null block. A cache is never full, hence a quarter more ids.
    ids = random.permutation(np.arange(1, 1 + int(counts.sum()) * 5 // 4))
    rows: list[np.ndarray] = []
    taken = 0
    for row, count in enumerate(counts.tolist()):
        blocks = ids[taken : taken + count].copy()
        taken += count
        if row and random.random() < _SHARING:
            other = int(random.integers(row))
            full = int(min(computed[row], computed[other])) // BLOCK_SIZE
            blocks[:full] = rows[other][:full]
        rows.append(blocks)
    return tuple(tuple(blocks.tolist()) for blocks in rows)


class TraceSteps(NamedTuple):
    """Evenly spaced engine steps of one trace."""

    name: str
    steps: tuple[TimedBatch, ...]


def trace_steps(path: Path | None, count: int, seed: int = 0) -> TraceSteps:
    """Take `count` engine steps of a trace, or of sampled requests without one.

    They are evenly spaced to represent the trace, unlike those of `batches_from_trace`. Raise
    TraceError if the trace cannot be read.
    """
    if path is None:
        return _scheduled("sampled:azure-conv", sample_requests(_TRACE_REQUESTS, seed), count)
    requests = read_trace(path, seed=seed)[:_TRACE_REQUESTS]
    return _scheduled(escape_line(f"{path.parent.name}/{path.name}"), requests, count)


def _scheduled(name: str, requests: list[TraceRequest], count: int) -> TraceSteps:
    schedule = islice(Scheduler(requests, _ENGINE), _TRACE_STEPS)
    steps = [step for step in schedule if step.num_tokens and step.num_blocks <= MOST_BLOCKS]
    places = np.linspace(0, len(steps) - 1, min(count, len(steps))).astype(int)
    chosen = [steps[place] for place in np.unique(places).tolist()]
    return TraceSteps(
        name,
        tuple(timed_batch(f"{name} step {step.index}", "trace", step.batch()) for step in chosen),
    )
