"""The scheduler with the inputs of a live engine, and its first difference from that engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.engine_run import Arrival, EngineStep
from attnproof.harness.cases.scheduler.request import LiveRequest, ServedRequest
from attnproof.harness.cases.scheduler.scheduler import Scheduler
from attnproof.harness.cases.scheduler.step import (
    CACHED,
    DRAFTS,
    REQUEST,
    Bools,
    Ints,
    Step,
)
from attnproof.harness.cases.traces.formats import TraceRequest


class GuidedScheduler(Scheduler):
    """Scheduler whose arrivals, aborts, drafts and sampled tokens are given for each step."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__([], config)
        self._sampled: Mapping[int, int] = {}
        self._query: Ints = np.zeros(0, np.int64)

    def add(self, arrival: Arrival) -> None:
        """Put a request at the end of the queue."""
        room = self.config.max_model_len - arrival.input_tokens
        output, number = min(arrival.output_tokens, room), len(self.served)
        served = ServedRequest(number, 0.0, arrival.input_tokens, output)
        size = self.config.block_size
        request = TraceRequest(0.0, arrival.input_tokens, output, arrival.prefixes, size)
        self.served.append(served)
        self._enqueue(served, request)

    def abort(self, number: int) -> None:
        """Remove a waiting or running request, and release its blocks."""
        for live in self._waiting:
            if live.served.request == number:
                self._waiting.remove(live)
                return
        for row, live in enumerate(self._running):
            if live.served.request == number:
                self._drop_blocks(live, int(self._state[CACHED, row]))
                del self._running[row]
                kept = np.delete(np.arange(len(self._running) + 1), row)
                self._state[:, : len(kept)] = self._state[:, kept]
                return

    def next_step(self, drafts: Mapping[int, int]) -> tuple[Step, list[LiveRequest]]:
        """Schedule an engine step; return it with its requests.

        `drafts` are the draft tokens of the running requests.
        """
        state = self._state[:, : len(self._running)]
        state[DRAFTS] = [drafts.get(number, 0) for number in state[REQUEST].tolist()]
        step, self._query = self._schedule()
        scheduled = np.flatnonzero(self._query).tolist()
        return step, [self._running[row] for row in scheduled]

    def commit(self, sampled: Mapping[int, int]) -> list[int]:
        """Apply the tokens that requests sampled; return the requests that were due to sample."""
        self._sampled = sampled
        self._commit(self._query)
        return self._due

    def _sample(self, state: Ints, sampled: Bools) -> Ints:
        self._due: list[int] = state[REQUEST, sampled].tolist()
        numbers = state[REQUEST].tolist()
        return np.array([self._sampled.get(number, 0) for number in numbers], np.int64)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a run that was compared, up to the first difference."""

    steps: int
    requests: int
    tokens: int
    """Scheduled tokens."""
    preemptions: int
    cached_tokens: int
    """Tokens taken from the prefix cache."""
    aborted: int
    drafts: int
    """Draft tokens that were verified."""
    accepted: int
    """Draft tokens that were accepted."""
    renamed: bool
    """True if the block ids differ, though their use does not."""
    difference: str | None
    """First difference: the step, the request, what each did; None without one."""


def compare_run(config: SchedulerConfig, steps: Iterable[EngineStep]) -> Comparison:
    """Schedule the requests of an engine's run again, and compare every step.

    Arrivals, aborts, drafts and the numbers of sampled tokens are the engine's. Compared are the
    scheduled requests with their tokens, the blocks up to renaming, the free blocks, and the
    requests that sample.
    """
    scheduler, names = GuidedScheduler(config), _Names()
    count = tokens = drafts = accepted = aborted = 0
    difference = None
    for count, theirs in enumerate(steps, 1):
        for arrival in theirs.arrived:
            scheduler.add(arrival)
        for number in theirs.aborted:
            scheduler.abort(number)
        aborted += len(theirs.aborted)
        step, live = scheduler.next_step(theirs.drafts)
        difference = (
            _scheduled(theirs, step)
            or names.compare(theirs, [request.blocks for request in live])
            or _number("free blocks", theirs.free, step.num_free_blocks)
            or _sampling(theirs, scheduler.commit(theirs.sampled))
        )
        if difference:
            difference = f"step {count}: {difference}"
            break
        tokens += step.num_tokens
        verified = [number for number, _ in theirs.scheduled if number in theirs.drafts]
        drafts += sum(theirs.drafts[number] for number in verified)
        accepted += sum(max(0, theirs.sampled.get(number, 0) - 1) for number in verified)
    return Comparison(
        steps=count,
        requests=len(scheduler.served),
        tokens=tokens,
        preemptions=scheduler.counts.preemptions,
        cached_tokens=scheduler.counts.cached_tokens,
        aborted=aborted,
        drafts=drafts,
        accepted=accepted,
        renamed=names.renamed,
        difference=difference,
    )


class _Names:
    """The renaming of the engine's blocks, one for the whole run."""

    def __init__(self) -> None:
        self._ours: dict[int, int] = {}
        self._theirs: dict[int, int] = {}
        self.renamed = False

    def compare(self, step: EngineStep, ours: list[list[int]]) -> str | None:
        """Return the first block that contradicts the renaming so far, None without one."""
        for (request, _), their_row, our_row in zip(step.scheduled, step.blocks, ours, strict=True):
            difference = _number("blocks", len(their_row), len(our_row))
            if difference:
                return f"request {request}: {difference}"
            for place, (their, our) in enumerate(zip(their_row, our_row, strict=True)):
                pair = self._ours.setdefault(their, our), self._theirs.setdefault(our, their)
                if pair != (our, their):
                    return (
                        f"request {request}: block {place} is {their} in the engine, {our} in the "
                        f"scheduler; before, {their} was {pair[0]} there, and {our} was {pair[1]}"
                    )
                self.renamed |= their != our
        return None


def _scheduled(theirs: EngineStep, step: Step) -> str | None:
    ours = list(zip(step.state[REQUEST].tolist(), step.query_lens.tolist(), strict=True))
    for their, our in zip(theirs.scheduled, ours, strict=False):
        if tuple(their) != our:
            return (
                f"the engine gives request {their[0]} {their[1]} tokens, "
                f"the scheduler request {our[0]} {our[1]}"
            )
    if len(ours) != len(theirs.scheduled):
        more = max(ours, theirs.scheduled, key=len)[min(len(ours), len(theirs.scheduled))]
        who = "scheduler" if len(ours) > len(theirs.scheduled) else "engine"
        return f"only the {who} schedules request {more[0]}, with {more[1]} tokens"
    return None


def _sampling(theirs: EngineStep, due: list[int]) -> str | None:
    for number, _ in theirs.scheduled:
        if (number in due) != (theirs.sampled.get(number, 0) > 0):
            who = "scheduler" if number in due else "engine"
            return f"request {number}: only the {who} samples"
    return None


def _number(what: str, theirs: int, ours: int) -> str | None:
    return None if theirs == ours else f"{what}: {theirs} in the engine, {ours} in the scheduler"
