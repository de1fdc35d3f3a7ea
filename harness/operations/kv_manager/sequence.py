"""Sequence of SPEC.md section 16: a KV-cache manager through the steps of an engine.

Bug classes: a prefix whose blocks hold other tokens, a block that goes while a request still
reads it, hits that one group has and another lacks, blocks that are never freed. Each needs
several requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from attnproof.harness.cases.machine import Machine
from attnproof.harness.model.call import Call
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.operations.kv_manager.ledger import BLOCKS, FITS, FREE, HITS, NULLS, RESETS
from attnproof.harness.operations.kv_manager.lines import observe, script, steps_consumed
from attnproof.harness.operations.kv_manager.steps import PARAMS
from attnproof.harness.operations.shared.sequence import (
    SEQUENCE_NOT_TIMED,
    SequenceCall,
    Step,
    sequence_inputs,
    step_pairs,
)

NAME = "kv_manager"
_SIZES: dict[str, Any] = {
    "num_blocks": 17,
    "block_size": 4,
    "windows": [0],
    "max_model_len": 32,
    "caching": True,
}
_SMALL = st.integers(0, 3)
_TOKENS = st.integers(0, 39)
_SOME = st.sampled_from((1, 1, 1, 2, 0))
"""Requests back from the newest one whose prefix is shared, 0 for none."""
_RARELY = st.sampled_from((False, False, False, True))


class _Machine(Machine):
    operation = NAME

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    @initialize(
        blocks=st.sampled_from((9, 4, 6, 13, 25)),
        block_size=st.sampled_from((4, 2, 1, 3, 8)),
        windows=st.sampled_from(([0], [5], [0, 5], [0, 2], [3], [4, 9], [0, 0], [8])),
        length=st.sampled_from((24, 12, 40)),
        caching=st.sampled_from((True, True, True, False)),
        prompts=st.lists(_TOKENS, min_size=1, max_size=2),
    )
    def start(
        self,
        blocks: int,
        block_size: int,
        windows: list[int],
        length: int,
        caching: bool,
        prompts: list[int],
    ) -> None:
        """Choose the sizes of the cache, and serve requests of one prefix."""
        chosen = {"num_blocks": blocks, "block_size": block_size, "windows": windows}
        self.params = chosen | {"max_model_len": length, "caching": caching}
        for tokens in prompts:
            self.serve(tokens, 1, tokens, rejoins=False, leaves=False)

    @rule(tokens=_TOKENS, like=_SOME, shared=_TOKENS, rejoins=_RARELY)
    def add(self, tokens: int, like: int, shared: int, rejoins: bool) -> None:
        """Add a request, some of its tokens those of an earlier one."""
        self.requests += 1
        self.step("add", tokens=tokens, like=like, shared=shared, rejoins=rejoins)

    @rule(tokens=_TOKENS, like=_SOME, shared=_TOKENS, rejoins=_RARELY, leaves=st.booleans())
    def serve(self, tokens: int, like: int, shared: int, rejoins: bool, leaves: bool) -> None:
        """Add a request and compute its prompt; it may leave then."""
        self.add(tokens, like, shared, rejoins)
        self.step("schedule", which=self.requests - 1, chunk=39, lookahead=0, sampled=0)
        if leaves:
            self.finish(self.requests - 1)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, chunk=_TOKENS, lookahead=_SMALL, sampled=st.integers(0, 1))
    def schedule(self, which: int, chunk: int, lookahead: int, sampled: int) -> None:
        """Schedule a request: a chunk of its prompt, or a token."""
        numbers = {"chunk": chunk, "lookahead": lookahead, "sampled": sampled}
        self.step("schedule", which=which, **numbers)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, tokens=st.integers(1, 8), lookahead=_SMALL)
    def decode(self, which: int, tokens: int, lookahead: int) -> None:
        """Decode several tokens of one request."""
        for _ in range(tokens):
            self.schedule(which, 0, lookahead, 0)

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


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name the answer of which the other wrong ones are consequences."""
    if place.field != "answers" or not isinstance(got, dict):
        return ""
    wrong = {name for name, value in expected.items() if got[name] != value}
    # What a running request frees decides what fits; a waiting one frees nothing.
    first = ("nulls", "fits") if expected["hits"] is None else ("fits", "nulls")
    for name in ("hits", *first, "blocks", "reset", "free"):
        if name in wrong:
            return _TEXTS[name][_number(got[name]) > _number(expected[name])]
    return ""


_TEXTS = {
    "hits": HITS,
    "nulls": NULLS,
    "fits": FITS,
    "blocks": (BLOCKS, BLOCKS),
    "reset": RESETS,
    "free": FREE,
}
"""Diagnoses of an answer that is too small, and of one that is too large."""


def _number(answer: Any) -> int:
    """Return an answer as a number, the sum of one number for each group of each request."""
    return sum(map(sum, answer)) if isinstance(answer, list) else int(answer)


def _case(*steps: Step, **sizes: Any) -> Case:
    return Case(NAME, None, _SIZES | sizes | {"steps": list(steps)})


def _add(tokens: int, shared: int = 0, like: int = 1, *, rejoins: bool = False) -> Step:
    """Return the step that adds a request of `tokens` tokens."""
    prefix = {"like": like if shared or rejoins else 0, "shared": shared, "rejoins": rejoins}
    return {"do": "add", "tokens": tokens - 1, **prefix}


def _schedule(which: int, tokens: int, lookahead: int = 0, sampled: int = 0) -> Step:
    """Return a step of up to `tokens` tokens of a request."""
    numbers = {"chunk": tokens - 1, "lookahead": lookahead, "sampled": sampled}
    return {"do": "schedule", "which": which, **numbers}


def _finish(which: int) -> Step:
    return {"do": "finish", "which": which}


def _preempt(which: int) -> Step:
    return {"do": "preempt", "which": which}


_RESET: Step = {"do": "reset"}


def _boundaries() -> Iterator[tuple[str, Case]]:
    both, window = {"windows": [0, 6]}, {"windows": [6]}
    prompt = (_add(13), _schedule(0, 32))
    for name, groups in (("full", {}), ("window", window), ("full and window", both)):
        chunks = (_add(22), *[_schedule(0, 5)] * 5, *[_schedule(0, 1, 3)] * 9)
        yield (
            f"{name}: chunks, decodes, a second turn",
            _case(*chunks, _finish(0), _add(30, 27), _schedule(0, 32), **groups),
        )
        shared = (_add(13, 13), _schedule(1, 32), _schedule(1, 1, sampled=1), _finish(0))
        yield (
            f"{name}: a prefix in use is shared",
            _case(*prompt, *shared, *[_schedule(0, 1)] * 8, **groups),
        )
        yield (
            f"{name}: whole prompt cached, a token is left",
            _case(_add(12), _schedule(0, 12), _add(12, 12), _schedule(1, 12), **groups),
        )
        evicting = [
            step
            for shared in (0, 0, 4, 12, 8)
            for step in (_add(14, shared, 2), _schedule(0, 32), _finish(0))
        ]
        yield f"{name}: blocks are evicted", _case(*evicting, num_blocks=9, **groups)
        full = (*prompt, _add(20), _schedule(1, 32), _add(20, 20), _schedule(2, 32))
        yield (
            f"{name}: no block is left",
            _case(*full, _preempt(0), _schedule(1, 32), _schedule(0, 9), num_blocks=9, **groups),
        )
        yield (
            f"{name}: preempted and resumed",
            _case(*prompt, *[_schedule(0, 1, 2)] * 6, _preempt(0), _schedule(0, 7), **groups),
        )
        resets = (_RESET, _preempt(0), _RESET, _schedule(0, 32), _finish(0), _RESET)
        yield f"{name}: reset in use, and not in use", _case(*prompt, *resets, **groups)
        yield (
            f"{name}: no caching",
            _case(*prompt, _add(13, 13), _schedule(1, 32), _finish(0), caching=False, **groups),
        )
    yield "one group lacks what another has (#46453)", _lacking()
    yield (
        "a request of the longest length",
        _case(_add(31), _schedule(0, 32, 9), *[_schedule(0, 1, 9)] * 3),
    )
    yield "nothing to allocate", _case(*prompt, {"do": "nothing", "which": 0}, _schedule(0, 1))
    yield "aborted before it has blocks", _case(_add(9), _finish(0), *prompt)
    yield from _pairs()


def _lacking() -> Case:
    """Return a case in which a window's blocks of a prefix are evicted and the full ones stay."""
    first = (_add(24), _schedule(0, 16), _schedule(0, 32), *[_schedule(0, 1)] * 4)
    others = (_add(16), _schedule(1, 32), _finish(1))
    resent = (_add(24, 12, 2), _schedule(1, 32))
    return _case(*first, *others, *resent, num_blocks=20, windows=[0, 5])


def _pairs() -> Iterator[tuple[str, Case]]:
    """Yield pairs of steps of two requests that share a prefix."""
    kinds: dict[str, list[Step]] = {
        "add": [_add(9, 8), _schedule(1, 9)],
        "schedule": [_schedule(0, 3, 2)],
        "finish": [_finish(0)],
        "preempt": [_preempt(0)],
        "reset": [_RESET],
        "nothing": [{"do": "nothing", "which": 0}],
    }
    before = [*[_finish(0)] * 4, _add(9), _schedule(0, 9), _add(11, 9), _schedule(1, 7)]
    for name, steps in step_pairs(kinds, before, [_schedule(0, 9), _schedule(1, 9)]):
        yield name, _case(*steps, windows=[0, 6])


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a sequence of up to four of the batch's requests, with short prompts."""
    rows = list(zip(batch.query_lens, batch.computed_lens, strict=True))[:4]
    size = min(batch.block_size, 16)
    steps: list[Step] = []
    for index, (query, computed) in enumerate(rows):
        tokens = 1 + (query + computed) % 24
        steps += [_add(tokens, computed % 24), _schedule(index, 1 + query % 24)]
    served = [_schedule(index, 9, 2) for index in range(len(rows))]
    yield _case(*steps, *served, _finish(0), *served, _RESET, block_size=size, windows=[0, 6])


kv_manager = Operation(
    name=NAME,
    section="16",
    summary="blocks and cached prefixes through the steps of an engine",
    inputs=sequence_inputs(
        params=PARAMS,
        machine=_Machine,
        boundaries=_boundaries,
        from_batch=_from_batch,
    ),
    call=SequenceCall(parts=("KVCacheManager",), write=script, observe=observe),
    contract=Contract(diagnose=_diagnose, consume=steps_consumed),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
    built_in=BuiltIn(shared="Python objects of a request: there is nothing to make faster"),
)

OPERATIONS = (kv_manager,)
