"""Steps of an engine, drawn: requests that share prefixes, in pools that are too small for all."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from attnproof.harness.cases.machine import Machine
from attnproof.harness.operations.kv_manager.steps import NAME, groups_of

_SMALL = st.integers(0, 3)
_LOOKAHEAD = st.sampled_from((0, 1, 3, 9))
"""Tokens, some of which need more than a block."""
_TOKENS = st.integers(0, 39)
_SOME = st.sampled_from((1, 1, 1, 2, 0))
"""Requests back from the newest one whose prefix is shared, 0 for none."""
_GROUPS: tuple[list[int | str], ...] = (
    [0],
    [5],
    [0, 5],
    [0, 2],
    [3],
    [4, 9],
    [0, 0],
    [8],
    ["mamba"],
    [0, "mamba"],
    [4, "mamba"],
    ["chunked"],
    [0, "chunked"],
)
"""Windows of the groups, 0 for full attention, or their kind."""
_RARELY = st.sampled_from((False, False, False, True))


class ManagerMachine(Machine):
    """State machine that draws the steps of an engine."""

    operation = NAME

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    @initialize(
        blocks=st.sampled_from((9, 4, 6, 13, 25)),
        block_size=st.sampled_from((4, 2, 1, 3, 8)),
        windows=st.sampled_from(_GROUPS),
        factor=st.sampled_from((1, 1, 2, 3)),
        draft=st.sampled_from((-1, -1, 0, 1)),
        lookahead=st.sampled_from((0, 0, 1, 2)),
        watermark=st.sampled_from((0, 0, 0, 2)),
        retention=st.sampled_from((0, 0, 0, 1, 2, 3)),
        length=st.sampled_from((24, 13, 39, 18)),
        caching=st.sampled_from((True, True, True, False)),
        prompts=st.lists(_TOKENS, min_size=1, max_size=2),
    )
    def start(
        self,
        blocks: int,
        block_size: int,
        windows: list[int | str],
        factor: int,
        draft: int,
        lookahead: int,
        watermark: int,
        retention: int,
        length: int,
        caching: bool,
        prompts: list[int],
    ) -> None:
        """Choose the sizes of the cache, and serve requests of one prefix."""
        self.params = {
            "num_blocks": blocks,
            "block_size": block_size,
            "groups": groups_of(windows, draft, factor),
            "max_model_len": length,
            "caching": caching,
            "hash_lookahead": lookahead,
            "watermark": watermark,
            "retention": retention,
        }
        for tokens in prompts:
            self.serve(tokens, 1, tokens, rejoins=False, leaves=False, joins=False)

    @rule(tokens=_TOKENS, like=_SOME, shared=_TOKENS, rejoins=_RARELY, reuses=_RARELY)
    def add(self, tokens: int, like: int, shared: int, rejoins: bool, reuses: bool) -> None:
        """Add a request, some of its tokens those of an earlier one, or its name."""
        self.requests += 1
        prefix = {"like": like, "shared": shared, "rejoins": rejoins, "reuses": reuses}
        self.step("add", tokens=tokens, **prefix)

    @rule(
        tokens=_TOKENS,
        like=_SOME,
        shared=_TOKENS,
        rejoins=_RARELY,
        leaves=st.booleans(),
        joins=_RARELY,
    )
    def serve(
        self, tokens: int, like: int, shared: int, rejoins: bool, leaves: bool, joins: bool
    ) -> None:
        """Add a request and compute its prompt; it may leave then."""
        self.add(tokens, like, shared, rejoins, joins)
        self.schedule(self.requests - 1, 39, 0, 0, joins)
        if leaves:
            self.finish(self.requests - 1)

    @precondition(lambda self: self.requests)
    @rule(
        which=_SMALL, chunk=_TOKENS, lookahead=_LOOKAHEAD, sampled=st.integers(0, 1), joins=_RARELY
    )
    def schedule(self, which: int, chunk: int, lookahead: int, sampled: int, joins: bool) -> None:
        """Schedule a request: a chunk of its prompt, or a token."""
        numbers = {"chunk": chunk, "lookahead": lookahead, "sampled": sampled, "joins": joins}
        self.step("schedule", which=which, **numbers)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, tokens=st.integers(1, 8), lookahead=_LOOKAHEAD)
    def decode(self, which: int, tokens: int, lookahead: int) -> None:
        """Decode several tokens of one request."""
        for _ in range(tokens):
            self.schedule(which, 0, lookahead, 0, joins=False)

    @precondition(lambda self: self.requests)
    @rule(
        which=_SMALL,
        drafts=st.integers(1, 4),
        rejected=_SMALL,
        steps=st.integers(1, 6),
        ahead=st.booleans(),
    )
    def draft(self, which: int, drafts: int, rejected: int, steps: int, ahead: bool) -> None:
        """Decode with drafts, of which some are rejected, perhaps a step ahead of the results."""
        numbers = {"drafts": drafts, "rejected": rejected, "ahead": ahead}
        for _ in range(steps):
            self.step("schedule", which=which, chunk=0, lookahead=0, sampled=0, **numbers)

    @rule(tokens=_TOKENS, like=_SOME, shared=_TOKENS, external=_TOKENS, delayed=st.booleans())
    def load(self, tokens: int, like: int, shared: int, external: int, delayed: bool) -> None:
        """Add a request some of whose tokens a connector loads."""
        self.add(tokens, like, shared, False, delayed)
        numbers = {"external": external, "delayed": delayed}
        which = self.requests - 1
        self.step("schedule", which=which, chunk=39, lookahead=0, sampled=0, **numbers)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, chunk=_TOKENS)
    def withdraw(self, which: int, chunk: int) -> None:
        """Preempt a request before its step runs."""
        self.step("schedule", which=which, chunk=chunk, lookahead=0, sampled=0, withdrawn=True)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, short=st.integers(1, 9))
    def bound(self, which: int, short: int) -> None:
        """Resume a request with a bound of its hits."""
        self.preempt(which)
        self.step("schedule", which=which, chunk=39, lookahead=0, sampled=0, short=short)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, first=_SMALL)
    def evict(self, which: int, first: int) -> None:
        """Evict the last blocks of a request."""
        self.step("evict", which=which, first=first)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL)
    def finish(self, which: int) -> None:
        """End a request, or abort one that has no blocks yet."""
        self.requests -= 1
        self.step("finish", which=which)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL)
    def preempt(self, which: int) -> None:
        """Preempt a request; its next schedule resumes it."""
        self.step("preempt", which=which)

    @rule(drained=st.booleans())
    def reset(self, drained: bool) -> None:
        """Reset the prefix cache, which works after all requests are preempted."""
        for which in range(self.requests if drained else 0):
            self.preempt(which)
        self.step("reset")

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL)
    def nothing(self, which: int) -> None:
        """Allocate nothing, which is refused."""
        self.step("nothing", which=which)
