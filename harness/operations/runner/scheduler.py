"""A scheduler for model runner V2: request slots, blocks and tokens, without tensors.

It knows the token at every position of every request, so that the consumer can say what a
step must compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Annotated, Any, NamedTuple

import msgspec

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK
from attnproof.harness.model.case import Count
from attnproof.harness.operations.runner.judge import Group
from attnproof.harness.operations.shared.params import Counts, sequence_params

VOCABULARY = 64
"""Sampled token ids are below it."""
_PROMPT, _DRAFT = 1_000, 1_000_000
"""Token ids of prompts and drafts are above these numbers, and differ."""
_SIZE = Annotated[int, msgspec.Meta(ge=0, le=256)]
_SIZES = (
    "max_num_reqs",
    "max_num_tokens",
    "max_model_len",
    "block_size",
    "other_block_size",
    "ranks",
    "interleave",
    "drafts",
)
RUNNER_PARAMS = sequence_params(
    {
        "add": [("tokens", Count), ("cached", Count)],
        "schedule": [
            ("lens", Counts),
            ("first", Count),
            ("pad_reqs", Count),
            ("pad_tokens", Count),
            ("wide", bool),
        ],
        "draft": [("lens", Counts)],
        "sample": [("accepted", Counts)],
        "pool": [],
        "abort": [("which", Count)],
        "preempt": [("which", Count)],
        "resume": [("cached", Count)],
        "dummy": [("reqs", Count), ("tokens", Count)],
        "overflow": [("which", Count), ("group", Count), ("overwrite", bool)],
    },
    [(name, _SIZE) for name in _SIZES],
)
"""Sizes of the buffers, and the steps."""


@dataclass
class Request:
    """A request with a slot, or a preempted one."""

    name: str
    tokens: list[int]
    prompt: int
    """Tokens that the runner was given when the request got its slot."""
    computed: int = 0
    slot: int = -1
    blocks: list[list[int]] = field(default_factory=list)
    """Blocks of each group."""
    drafts: list[int] = field(default_factory=list)

    def token(self, position: int) -> int:
        """Return the token at a position, a draft behind the sampled tokens."""
        sampled = len(self.tokens)
        return self.tokens[position] if position < sampled else self.drafts[position - sampled]


class Row(NamedTuple):
    """One row of a scheduled step."""

    request: Request
    slot: int
    """Slot of the request, -1 after it lost the slot."""
    computed: int
    query: int
    logits: int

    @property
    def end(self) -> int:
        """Tokens of the sequence after the step."""
        return self.computed + self.query


class Scheduled(NamedTuple):
    """A scheduled step."""

    rows: list[Row]
    padded_rows: int
    padded_tokens: int
    """Tokens of the padded step."""

    @property
    def tokens(self) -> int:
        """Query tokens of all rows."""
        return sum(row.query for row in self.rows)


class Scheduler:
    """Requests, free slots and free blocks."""

    def __init__(self, params: dict[str, Any], pattern: int) -> None:
        self.slots, self.max_tokens, self.max_len = (max(1, params[n]) for n in _SIZES[:3])
        other = params["other_block_size"]
        self.block_sizes = [max(1, params["block_size"]), *([other] if other else [])]
        self.ranks = 2 if params["ranks"] > 1 else 1
        self.turn = gcd(max(1, params["interleave"]), *self.block_sizes)
        self.drafts = max(1, params["drafts"])
        self.columns = [-(-self.max_len // (size * ranks)) for size, ranks in self.sharded_sizes]
        self.history = self.max_len + self.drafts + 1
        """Columns of the token histories."""
        self.running: list[Request] = []
        self.preempted: list[Request] = []
        self.scheduled: Scheduled | None = None
        """The step that is not sampled yet."""
        self._pattern = pattern
        self._free_slots = list(range(self.slots))
        self._free = [list(range(self.slots * width, 0, -1)) for width in self.columns]
        self._added = self._drawn = 0

    @property
    def sharded_sizes(self) -> list[tuple[int, int]]:
        """Block size and ranks of each group: all ranks share the first, none the second."""
        return [(size, 1 if group else self.ranks) for group, size in enumerate(self.block_sizes)]

    def add(self, tokens: int, cached: int) -> Request | None:
        """Add a request of so many prompt tokens, some of them cached."""
        if not self._free_slots:
            return None
        prompt = [_PROMPT + self._draw() for _ in range(1 + tokens % self.max_len)]
        number, self._added = self._added, self._added + 1
        return self._start(Request(f"r{number}", prompt, len(prompt)), cached)

    def resume(self, cached: int) -> Request | None:
        """Give the first preempted request a slot; all its tokens are its prompt."""
        if not self._free_slots or not self.preempted:
            return None
        request = self.preempted.pop(0)
        request.prompt = len(request.tokens)
        return self._start(request, cached)

    def _start(self, request: Request, cached: int) -> Request:
        request.slot = self._free_slots.pop()
        request.computed, request.drafts = 0, []
        request.blocks = [[] for _ in self.block_sizes]
        self.running.append(request)
        wanted = cached % request.prompt
        if self.grow(request, wanted) is not None:
            request.computed = wanted
        return request

    def grow(self, request: Request, length: int) -> list[list[int]] | None:
        """Give the request blocks for `length` tokens; return the new ones, None if too few."""
        missing = [
            max(0, -(-length // (size * ranks)) - len(held))
            for (size, ranks), held in zip(self.sharded_sizes, request.blocks, strict=True)
        ]
        if any(more > len(free) for more, free in zip(missing, self._free, strict=True)):
            return None
        new = [
            [self._block_id(free.pop()) for _ in range(more)]
            for more, free in zip(missing, self._free, strict=True)
        ]
        for held, more in zip(request.blocks, new, strict=True):
            held.extend(more)
        return new

    def _block_id(self, block: int) -> int:
        """Return the id of a block in the program; the function is its own inverse."""
        return HIGHEST_BLOCK - block if self._pattern else block

    def stop(self, which: int) -> Request | None:
        """Take a running request's slot and blocks away."""
        if not self.running:
            return None
        request = self.running.pop(which % len(self.running))
        for free, held in zip(self._free, request.blocks, strict=True):
            free += [self._block_id(block) for block in reversed(held)]
        self._free_slots.append(request.slot)
        request.slot = -1
        if self.scheduled is not None:
            rows = [
                row._replace(slot=-1) if row.request is request else row
                for row in self.scheduled.rows
            ]
            self.scheduled = self.scheduled._replace(rows=rows)
        return request

    def pick(self, which: int) -> Request | None:
        """Return a running request."""
        return self.running[which % len(self.running)] if self.running else None

    def schedule(
        self, lens: list[int], first: int, pad_reqs: int, pad_tokens: int
    ) -> tuple[Scheduled, list[tuple[Request, list[list[int]]]]]:
        """Schedule the requests from number `first` on; return the step and the new blocks."""
        rows: list[Row] = []
        grown, left = [], self.max_tokens
        start = first % len(self.running) if self.running else 0
        for number, request in enumerate(self.running[start:] + self.running[:start]):
            wanted = 1 + lens[number % len(lens)] if lens else 1
            row = self._row(request, wanted, left)
            if row is None:
                continue
            new = self.grow(request, row.end)
            if new is None:
                continue
            left -= row.query
            rows.append(row)
            if any(new):
                grown.append((request, new))
        padded = min(self.slots, len(rows) + pad_reqs % (self.slots + 1))
        tokens = sum(row.query for row in rows)
        padded_tokens = min(self.max_tokens, tokens + pad_tokens % (self.max_tokens + 1))
        self.scheduled = Scheduled(rows, padded, padded_tokens)
        return self.scheduled, grown

    def _row(self, request: Request, wanted: int, left: int) -> Row | None:
        """Return the request's row of at most `wanted` prompt tokens, None if it has none."""
        computed, total = request.computed, len(request.tokens)
        if computed < request.prompt:
            query = min(wanted, request.prompt - computed)
            logits = 1
        else:
            query = logits = 1 + len(request.drafts)
        if not 0 < query <= left or computed >= total or computed + query > self.max_len:
            return None
        return Row(request, request.slot, computed, query, logits)

    def draft(self, lens: list[int]) -> list[Request]:
        """Draft tokens for the requests that decode next."""
        drafted = []
        for number, request in enumerate(self.running):
            room = self.max_len - len(request.tokens)
            count = lens[number % len(lens)] if lens else 0
            if request.computed >= request.prompt:
                request.drafts = [
                    _DRAFT + self._draw() for _ in range(min(count, self.drafts, room))
                ]
                drafted.append(request)
        return drafted

    def sample(self, accepted: list[int]) -> list[tuple[Row, list[int], int]]:
        """Finish the step: return each row's sampled tokens and how many count."""
        assert self.scheduled is not None
        results = []
        for number, row in enumerate(self.scheduled.rows):
            request, wanted = row.request, accepted[number % len(accepted)] if accepted else 0
            count = 1 + wanted % row.logits
            tokens = [self._draw() % VOCABULARY for _ in range(count)]
            valid = count if row.end >= request.prompt else 0
            if row.slot >= 0:
                request.tokens += tokens[:valid]
                request.computed += row.query - (row.logits - valid if valid else 0)
                request.drafts = []
            results.append((row, tokens, valid))
        self.scheduled = None
        return results

    def pool(self) -> bool:
        """Finish a step of prompts without sampling; return False if a row samples."""
        step = self.scheduled
        if step is None or any(row.end > row.request.prompt for row in step.rows):
            return False
        for row in step.rows:
            if row.slot >= 0:
                row.request.computed += row.query
        self.scheduled = None
        return True

    def _draw(self) -> int:
        """Return a number that was not drawn before."""
        self._drawn += 1
        return self._drawn

    def groups(self, step: Scheduled, rank: int) -> list[Group]:
        """Return each group's blocks of the step's rows, as that rank sees them."""
        return [
            Group(
                block_size=size,
                columns=self.columns[group],
                enabled=True,
                ranks=ranks,
                rank=rank,
                turn=self.turn,
                blocks=[list(row.request.blocks[group]) for row in step.rows],
            )
            for group, (size, ranks) in enumerate(self.sharded_sizes)
        ]
