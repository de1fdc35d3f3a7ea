"""One step of a schedule: which requests compute how many tokens, and its batch on demand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.model.case import Batch

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

# Rows of the scheduler's state: one int64 for each running request.
KNOWN = 0
"""Tokens whose ids are known: prompt and generated ones."""
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
"""Tokens that the prefix cache gave at the last admission."""
RESUMED = 7
"""Known tokens when it was admitted again after a preemption, 0 if it never was."""
REQUEST = 8
"""Place of the request in the list that the scheduler was given."""
NUM_FIELDS = 9


class Step:
    """A scheduled step, before its tokens are computed.

    Rows are the scheduled requests in the scheduler's order: those running before, oldest
    first, then those admitted in this step. A step stays true when the schedule moves on: the
    block lists it refers to only ever grow.
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
        """Number of the step, from 0."""
        self.start_s = start_s
        """When it begins, seconds after the first arrival."""
        self.config = config
        self.state = state
        """One column a row, fields as above, before the step: int64 (NUM_FIELDS, rows)."""
        self.query_lens = query_lens
        """Query tokens of each row, all positive: int64."""
        self._blocks = blocks
        self.num_running = 0
        """Requests admitted and not finished, whether scheduled in this step or not."""
        self.num_waiting = 0
        """Requests in the queue, preempted ones included."""
        self.num_preempted = 0
        """Requests that lost their blocks in this step."""
        self.num_admitted = 0
        """The last rows: requests that left the queue in this step."""
        self.num_free_blocks = 0
        """Blocks of the pool that nobody holds."""

    @property
    def computed_lens(self) -> Ints:
        """Tokens of each row in the cache before the step."""
        computed: Ints = self.state[COMPUTED]
        return computed

    @cached_property
    def seq_lens(self) -> Ints:
        """Computed and query tokens of each row."""
        return self.computed_lens + self.query_lens

    @cached_property
    def num_tokens(self) -> int:
        """Query tokens of the step."""
        return int(self.query_lens.sum())

    @cached_property
    def decoding(self) -> Bools:
        """Whether each row computes only its last token, and drafts behind it."""
        decoding: Bools = self.state[KNOWN] - self.state[COMPUTED] == 1
        return decoding

    @property
    def uniform_decode_len(self) -> int:
        """Query length shared by all rows if that is a full decode, else 0."""
        full = 1 + self.config.num_speculative_tokens
        uniform = bool((self.query_lens == full).all() and self.decoding.all())
        return full if uniform else 0

    @cached_property
    def padding(self) -> tuple[int, int]:
        """Requests and tokens that graph padding adds.

        Tokens go up to the next capture size, none beyond the last size. Only steps of equal
        decodes replay a graph of the whole model: their requests are padded too, and the size
        is rounded up to whole requests.
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
        """Entries of the block table that are live."""
        return int((-(-self.seq_lens // self.config.block_size)).sum())

    @property
    def kv_tokens(self) -> int:
        """Tokens of context that the step reads."""
        return int(self.seq_lens.sum())

    def seconds(self) -> float:
        """How long the step takes."""
        decodes = int(np.count_nonzero(self.decoding))
        prefill = self.num_tokens - int(self.query_lens[self.decoding].sum())
        return self.config.cost.seconds(prefill, decodes, self.kv_tokens)

    def batch(self) -> Batch:
        """The step's batch with the live blocks of every row."""
        size = self.config.block_size
        counts = (-(-self.seq_lens // size)).tolist()
        requests, tokens = self.padding
        return Batch(
            block_size=size,
            query_lens=tuple(self.query_lens.tolist()),
            computed_lens=tuple(self.computed_lens.tolist()),
            blocks=tuple(
                tuple(held[:count]) for held, count in zip(self._blocks, counts, strict=True)
            ),
            padded_requests=requests,
            padded_tokens=tokens,
        )
