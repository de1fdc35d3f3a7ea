"""One engine step of a schedule: its rows, their query lengths, and its batch on demand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import structs

from attnproof.harness.cases.scheduler.block_pool import NULL_BLOCK
from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.model.case import Batch

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

# Rows of the scheduler's state, each with one int64 per running request.
KNOWN = 0
"""Prompt and generated tokens."""
COMPUTED = 1
"""Tokens in the KV cache."""
HELD = 2
"""Blocks held."""
END = 3
"""Known tokens at which the request is finished."""
PROMPT = 4
"""Prompt tokens."""
DRAFTS = 5
"""Draft tokens waiting for verification."""
HIT = 6
"""Tokens taken from the prefix cache at the last admission."""
RESUMED = 7
"""Known tokens at the last admission after a preemption, 0 without one."""
REQUEST = 8
"""Index of the request in the scheduler's list of requests."""
CACHED = 9
"""Tokens whose full blocks have a hash."""
NUM_FIELDS = 10


class Step:
    """A scheduled engine step, before its tokens are computed.

    Rows are the scheduled requests: the ones that were running before, oldest first, then
    the ones admitted in this engine step.
    """

    def __init__(
        self,
        index: int,
        start_s: float,
        config: SchedulerConfig,
        state: Ints,
        query_lens: Ints,
        blocks: Sequence[Sequence[int]],
    ) -> None:
        self.index = index
        """Index of the engine step, from 0."""
        self.start_s = start_s
        """Start time, in seconds after the first arrival."""
        self.config = config
        self.state = state
        """(NUM_FIELDS, rows) int64 state of the rows before the engine step."""
        self.query_lens = query_lens
        """(rows,) int64 query tokens, all positive."""
        # The lists are shared with the scheduler, which appends to them only: `batch` reads
        # the leading entries, so it stays correct when the schedule has moved on.
        self._blocks = blocks
        self.num_running = 0
        """Running requests, including those without a token in this engine step."""
        self.num_waiting = 0
        """Requests in the queue, preempted ones included."""
        self.num_preempted = 0
        """Requests that lost their blocks in this engine step."""
        self.num_admitted = 0
        """Requests that left the queue in this engine step; they are the last rows."""
        self.num_free_blocks = 0
        """Free blocks of the pool."""
        self.rows: list[int] = []
        """Requests in the order of the rows of a persistent batch."""

    @property
    def computed_lens(self) -> Ints:
        """Tokens of each row in the cache before the engine step."""
        computed: Ints = self.state[COMPUTED]
        return computed

    @cached_property
    def seq_lens(self) -> Ints:
        """Sum of computed and query tokens of each row."""
        return self.computed_lens + self.query_lens

    @cached_property
    def num_tokens(self) -> int:
        """Number of query tokens."""
        return int(self.query_lens.sum())

    @cached_property
    def decoding(self) -> Bools:
        """True for rows that compute their last token only, with drafts after it."""
        decoding: Bools = self.state[KNOWN] - self.state[COMPUTED] == 1
        return decoding

    @property
    def uniform_decode_len(self) -> int:
        """Query length of all rows if each is a decode with all its drafts, else 0."""
        full = 1 + self.config.num_speculative_tokens
        uniform = bool((self.query_lens == full).all() and self.decoding.all())
        return full if uniform else 0

    @cached_property
    def padding(self) -> tuple[int, int]:
        """Numbers of requests and tokens that graph padding adds.

        Tokens are padded to the next capture size, not at all beyond the last one. Requests
        are padded for uniform decodes only, since only these replay a graph of the whole
        model; the size is then rounded up to whole requests.
        """
        for size in self.config.capture_sizes:
            if size >= self.num_tokens:
                uniform = self.uniform_decode_len
                if not uniform:
                    return 0, size - self.num_tokens
                requests = -(-size // uniform) - len(self.query_lens)
                return requests, requests * uniform
        return 0, 0

    @property
    def num_blocks(self) -> int:
        """Number of live entries of the block table."""
        return int((-(-self.seq_lens // self.config.block_size)).sum())

    @property
    def kv_tokens(self) -> int:
        """Number of context tokens that the engine step reads."""
        return int(self.seq_lens.sum())

    def seconds(self) -> float:
        """Return the duration of the engine step in seconds."""
        decodes = int(np.count_nonzero(self.decoding))
        prefill = self.num_tokens - int(self.query_lens[self.decoding].sum())
        return self.config.cost.seconds(prefill, decodes, self.kv_tokens)

    @property
    def order(self) -> list[int]:
        """Scheduled row of each row of the batch."""
        place = {request: row for row, request in enumerate(self.state[REQUEST].tolist())}
        return [place[request] for request in self.rows]

    def batch(self) -> Batch:
        """Make the batch of the engine step in the order of a persistent batch's rows.

        It has the live blocks of each row; those before a sliding window are the null block.
        """
        config, size = self.config, self.config.block_size
        order = self.order
        counts = (-(-self.seq_lens // size))[order].tolist()
        computed = self.computed_lens[order].tolist()
        dead = [max(0, c - config.sliding_window + 1) // size for c in computed]
        if not config.sliding_window:
            dead = [0] * len(order)
        requests, tokens = self.padding
        batch = Batch(
            block_size=size,
            query_lens=tuple(self.query_lens[order].tolist()),
            computed_lens=tuple(computed),
            blocks=tuple(
                (*[NULL_BLOCK] * unseen, *self._blocks[row][unseen:count])
                for row, unseen, count in zip(order, dead, counts, strict=True)
            ),
            padded_requests=requests,
            padded_tokens=tokens,
        )
        if not config.later:
            return batch
        return structs.replace(
            batch,
            later=True,
            prompt_lens=tuple(self.state[PROMPT, order].tolist()),
            bound_slack=config.num_speculative_tokens,
        )
