"""A continuous-batching scheduler that behaves like vLLM V1's.

docs/scheduler.md compares it with a measured run of vLLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import numpy as np

from attnproof.harness.cases.scheduler.block_pool import BlockKeys, BlockPool
from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.lengths import decode_padding, running_lens
from attnproof.harness.cases.scheduler.request import (
    LiveRequest,
    ScheduleCounts,
    ServedRequest,
    accepted_requests,
)
from attnproof.harness.cases.scheduler.rows import Rows
from attnproof.harness.cases.scheduler.step import (
    CACHED,
    COMPUTED,
    DRAFTS,
    END,
    HELD,
    KNOWN,
    NUM_FIELDS,
    PROMPT,
    REQUEST,
    RESUMED,
    Bools,
    Ints,
    Step,
)
from attnproof.harness.cases.traces.formats import TraceRequest


class Scheduler:
    """Iterator over the engine steps of a schedule; its clock advances by their cost.

    Each engine step first serves running requests in order of admission, then admits waiting
    ones, within the token budget. When no block is free, the last running request is
    preempted: it loses its blocks, goes to the front of the queue and computes everything
    again.
    """

    def __init__(
        self, requests: Sequence[TraceRequest], config: SchedulerConfig | None = None
    ) -> None:
        self.config = config or SchedulerConfig()
        self.counts = ScheduleCounts()
        self.clock_s = 0.0
        self.pool = BlockPool(self.config.num_blocks)
        self._keys = BlockKeys(self.config.block_size)
        self._random = np.random.default_rng(self.config.seed)
        self._requests = requests
        self.served = accepted_requests(requests, self.config, self.counts)
        """Every request that is not rejected, in order of arrival."""
        self._future = deque(self.served)
        self._waiting: deque[LiveRequest] = deque()
        self._running: list[LiveRequest] = []
        self._rows = Rows()
        self._state: Ints = np.zeros((NUM_FIELDS, self.config.max_num_seqs), np.int64)

    def __iter__(self) -> Iterator[Step]:
        while True:
            if not self._running and not self._waiting:
                if not self._future:
                    return
                self.clock_s = max(self.clock_s, self._future[0].arrival_s)
            self._arrive()
            step, query = self._schedule()
            yield step
            self.clock_s += step.seconds()
            self._commit(query)

    def _arrive(self) -> None:
        while self._future and self._future[0].arrival_s <= self.clock_s:
            served = self._future.popleft()
            self._enqueue(served, self._requests[served.request])

    def _enqueue(self, served: ServedRequest, request: TraceRequest) -> None:
        keys: list[int] = []
        if self.config.enable_prefix_caching:
            keys = self._keys.of_prompt(request, served.input_tokens)
        self._waiting.append(LiveRequest(served, keys))

    def _schedule(self) -> tuple[Step, Ints]:
        """Return the next engine step and each running request's query length, 0 if skipped."""
        before = len(self._running)
        query = running_lens(self._state[:, :before], self.config, self._threshold)
        self._grow(query)
        preempted = before - len(self._running)
        query = query[: len(self._running)]
        if not preempted:
            query = np.concatenate([query, self._admit(query)])
        elif not self._running:
            raise RuntimeError("the last running request was preempted: the pool is too small")
        admitted = len(self._running) - before if not preempted else 0
        step = self._step(query)
        step.num_preempted, step.num_admitted = preempted, admitted
        return step, query

    def _step(self, query: Ints) -> Step:
        state = self._state[:, : len(query)]
        blocks = [live.blocks for live in self._running]
        if query.all():
            state, scheduled = state.copy(), query
        else:
            chosen = np.flatnonzero(query)
            state, scheduled = state[:, chosen], query[chosen]
            blocks = [blocks[row] for row in chosen.tolist()]
        step = Step(self.counts.steps, self.clock_s, self.config, state, scheduled, blocks)
        step.num_running, step.num_waiting = len(self._running), len(self._waiting)
        step.num_free_blocks = self.pool.num_free
        resumed = set(state[REQUEST, state[RESUMED] > 0].tolist())
        step.rows = self._rows.update(state[REQUEST].tolist(), resumed)
        self.counts.steps += 1
        return step

    @property
    def _threshold(self) -> int:
        """Most tokens of one request in the next engine step, 0 for no limit."""
        alone = len(self._running) + len(self._waiting) <= 1
        return (
            0
            if alone and self.config.engine != "0.11"
            else self.config.long_prefill_token_threshold
        )

    def _grow(self, query: Ints) -> None:
        """Allocate the blocks that the running requests need, preempting the youngest if needed.

        A request preempts younger requests only, so a request that has its blocks keeps them.
        """
        state = self._state[:, : len(query)]
        size = self.config.block_size
        needed = -(-(state[COMPUTED] + query) // size)
        full = (state[COMPUTED] + query) // size > state[CACHED] // size
        full &= state[COMPUTED] < state[PROMPT]
        for row in np.flatnonzero((needed > state[HELD]) | full).tolist():
            count = int(needed[row])
            while row < len(self._running) and (
                self.pool.num_free < count - len(self._running[row].blocks)
            ):
                self._preempt()
            if row >= len(self._running):
                return
            live = self._running[row]
            if count > len(live.blocks):
                live.blocks += self.pool.allocate(count - len(live.blocks))
                state[HELD, row] = count
            if live.registered < len(live.keys):
                self._register(live, int(state[COMPUTED, row] + query[row]))

    def _preempt(self) -> None:
        live = self._running.pop()
        column = self._state[:, len(self._running)]
        live.known = int(column[KNOWN])
        if self.config.enable_prefix_caching:
            # No other request can use the private blocks, so registering them now is enough.
            self._register(live, int(column[CACHED]))
            first, stop = len(live.keys), int(column[CACHED]) // self.config.block_size
            if stop > first:
                keys = self._keys.own(live.served.request, first, stop)
                self.pool.register(live.blocks[first:stop], keys)
        self._drop_blocks(live, int(column[CACHED]))
        live.served.preemptions += 1
        self.counts.preemptions += 1
        self._waiting.appendleft(live)

    def _register(self, live: LiveRequest, computed: int) -> None:
        """Register the shareable blocks that are full with `computed` tokens."""
        first, stop = live.registered, min(computed // self.config.block_size, len(live.keys))
        if stop > first:
            self.pool.register(live.blocks[first:stop], live.keys[first:stop])
            live.registered = stop

    def _drop_blocks(self, live: LiveRequest, cached: int) -> None:
        hashed = cached // self.config.block_size if self.config.enable_prefix_caching else 0
        self.pool.release(live.blocks, None if self.config.engine == "0.11" else hashed)
        live.blocks = []

    def _admit(self, running: Ints) -> Ints:
        """Move requests from the queue to the running ones and return their query lengths."""
        query: list[int] = []
        budget = self.config.max_num_batched_tokens - int(running.sum())
        drafts = decode_padding(self._state[:, : len(running)], running, self.config)
        limit, longest = self._threshold or budget, self.config.max_model_len
        while self._waiting and budget > 0 and len(self._running) < self.config.max_num_seqs:
            live = self._waiting[0]
            hits = self._hits(live)
            hit = len(hits) * self.config.block_size
            tokens = live.known - hit
            if tokens == 1 and (hit or running.any()) and hit + 1 + drafts < longest:
                tokens += drafts
                if tokens > budget:
                    break
            tokens = min(tokens, limit, budget)
            if not self._fits(live, hits, hit + tokens):
                break
            self._waiting.popleft()
            self._start(live, hits, tokens)
            query.append(tokens)
            budget -= tokens
        return np.array(query, np.int64)

    def _hits(self, live: LiveRequest) -> list[int]:
        """Return the cached blocks of the request's prefix, never with its last token."""
        if not self.config.enable_prefix_caching:
            return []
        most = (live.known - 1) // self.config.block_size
        hits = self.pool.find_prefix(live.keys[:most])
        if live.served.preemptions and len(hits) == len(live.keys):
            hits += self.pool.find_prefix(self._keys.own(live.served.request, len(hits), most))
        return hits

    def _fits(self, live: LiveRequest, hits: list[int], tokens: int) -> bool:
        reach = max(tokens, live.known if self.config.scheduler_reserve_full_isl else 0)
        needed = -(-reach // self.config.block_size) - len(hits)
        return needed + self.pool.count_free(hits) <= self.pool.num_free

    def _start(self, live: LiveRequest, hits: list[int], tokens: int) -> None:
        size, served = self.config.block_size, live.served
        hit = len(hits) * size
        self.pool.share(hits)
        count = -(-(hit + tokens) // size)
        live.blocks = hits + self.pool.allocate(count - len(hits))
        live.registered = min(len(hits), len(live.keys))
        self._register(live, min(hit + tokens, live.known))
        if served.scheduled_s < 0:
            served.scheduled_s = self.clock_s
        end = served.input_tokens + served.output_tokens
        resumed = live.known if served.preemptions else 0
        column = (
            live.known,
            hit,
            count,
            end,
            served.input_tokens,
            0,
            hit,
            resumed,
            served.request,
            hit,
        )
        self._state[:, len(self._running)] = column
        self._running.append(live)
        self.counts.cached_tokens += hit

    def _commit(self, query: Ints) -> None:
        """Apply the results of the engine step: sample tokens and finish requests."""
        state = self._state[:, : len(query)]
        scheduled = query > 0
        # Drafts are not part of a block's hash before they are accepted.
        cached = np.minimum(state[COMPUTED] + query, state[KNOWN])
        state[CACHED] = np.where(scheduled, cached, state[CACHED])
        state[COMPUTED] += query
        sampled = state[COMPUTED] >= state[KNOWN]
        first = np.flatnonzero(sampled & (state[KNOWN] == state[PROMPT]))
        state[KNOWN] += self._sample(state, sampled)
        np.minimum(state[KNOWN], state[END], out=state[KNOWN])
        state[COMPUTED] = np.where(sampled, state[KNOWN] - 1, state[COMPUTED])
        for row in first.tolist():
            served = self._running[row].served
            if served.first_token_s < 0:
                served.first_token_s = self.clock_s
        finished = state[KNOWN] >= state[END]
        if finished.any():
            self._finish(finished)

    def _sample(self, state: Ints, sampled: Bools) -> Ints:
        """Return the tokens that each request samples: one, and its accepted drafts."""
        if not self.config.num_speculative_tokens:
            return sampled.astype(np.int64)
        drafted = np.minimum(state[COMPUTED] - state[KNOWN], state[DRAFTS])
        drafted = np.where(sampled, drafted, 0)
        shape = (self.config.num_speculative_tokens, len(drafted))
        right = self._random.random(shape) < self.config.acceptance_rate
        accepted = np.minimum(np.logical_and.accumulate(right).sum(axis=0), drafted)
        drafts = self._random.random(len(drafted)) < self.config.draft_rate
        state[DRAFTS] = np.where(sampled, drafts * shape[0], state[DRAFTS])
        tokens: Ints = np.where(sampled, accepted + 1, 0)
        return tokens

    def _finish(self, finished: np.ndarray) -> None:
        for row in np.flatnonzero(finished).tolist():
            live = self._running[row]
            column = self._state[:, row]
            live.served.generated = int(column[KNOWN] - column[PROMPT])
            live.served.finished_s = self.clock_s
            self._register(live, int(column[CACHED]))
            self._drop_blocks(live, int(column[CACHED]))
            self.counts.finished += 1
        kept = np.flatnonzero(~finished)
        self._state[:, : len(kept)] = self._state[:, kept]
        self._running = [self._running[row] for row in kept.tolist()]
