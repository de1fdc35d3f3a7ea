"""Recorded batches to time: evenly spaced over a recording, as steps of a trace are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attnproof.harness.cases.recorded.batches import batch_of_build
from attnproof.harness.cases.recorded.reading import recorded_steps
from attnproof.harness.cases.recorded.steps import RecordingError
from attnproof.harness.cases.recorded.values import ValueProblem, metadata_of
from attnproof.harness.cases.steps.workloads import MOST_BLOCKS, TimedBatch, TraceSteps, timed_batch
from attnproof.harness.escaping import escape_line
from attnproof.harness.model.case import Batch

_Named = tuple[str, Batch]


def recorded_batches(path: Path, count: int) -> TraceSteps:
    """Take `count` batches of a recording, evenly spaced (RecordingError without one)."""
    name = escape_line(path.name)
    thinned = _thinned(_batches(path, name), count)
    if not thinned:
        raise RecordingError(f"{name}: no batch that can be timed")
    places = np.linspace(0, len(thinned) - 1, min(count, len(thinned))).astype(int)
    chosen = [thinned[place] for place in np.unique(places).tolist()]
    return TraceSteps(name, tuple(_timed(place, batch) for place, batch in chosen))


def _timed(place: str, batch: Batch) -> TimedBatch:
    return timed_batch(place, "recorded", batch)


def _batches(path: Path, name: str) -> Iterator[_Named]:
    """Yield the batches that have tokens and slots, each with its place in the file."""
    for step in recorded_steps(path, []):
        for group, build in enumerate(step.builds):
            try:
                batch = batch_of_build(build, metadata_of(build.cam))
            except (ValueProblem, ValueError, TypeError):
                continue  # `verify --recorded` names it
            if batch.num_tokens and not batch.no_slots and _num_blocks(batch) <= MOST_BLOCKS:
                yield f"{name}#{step.line},group={group}", batch


def _num_blocks(batch: Batch) -> int:
    return sum(map(len, batch.blocks))


def _thinned(batches: Iterator[_Named], count: int) -> list[_Named]:
    """Return every n-th item, n the smallest power of 2 that leaves fewer than 4 * count.

    A recording may have more batches than fit into memory, and its length is not known before.
    """
    kept: list[_Named] = []
    stride = 1
    for number, batch in enumerate(batches):
        if number % stride == 0:
            kept.append(batch)
            if len(kept) >= 4 * count:
                kept = kept[::2]
                stride *= 2
    return kept
