"""Sequences of SPEC.md section 13: request slots through the steps of model runner V2.

Bug classes: a slot that is reused and shows the request before it (K18), padded rows with an
earlier step's lengths (K13), tokens that were rejected and count as computed, prompts that
are cut into chunks and sample a token. Each needs more than one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from attnproof.harness.cases.machine import Machine
from attnproof.harness.model.call import Call, Free, Outputs
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.operation import Bench, BuiltIn, Contract, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.operations.runner.consumer import steps_consumed
from attnproof.harness.operations.runner.lines import FUNCTIONS, TABLES, script
from attnproof.harness.operations.runner.scheduler import RUNNER_PARAMS
from attnproof.harness.operations.shared.sequence import (
    SEQUENCE_NOT_TIMED,
    SequenceCall,
    Step,
    moved_tensors,
    sequence_inputs,
    step_pairs,
)

NAME = "runner_sequence"
_SIZES = {
    "max_num_reqs": 4,
    "max_num_tokens": 24,
    "max_model_len": 24,
    "block_size": 4,
    "other_block_size": 0,
    "ranks": 1,
    "interleave": 1,
    "drafts": 3,
}
_BUFFERS = (
    "input_ids",
    "positions",
    "seq_lens",
    "num_computed_tokens",
    "total_len",
    "all_token_ids",
    "last_sampled_tokens",
    "next_prefill_tokens",
    "output_bin_counts",
)
_SMALL = st.integers(0, 3)
_TOKENS = st.integers(0, 22)
_LENS = st.lists(st.sampled_from((0, 1, 4, 8, 21)), min_size=1, max_size=4)
_COUNTS = st.lists(_SMALL, min_size=1, max_size=4)


class _Machine(Machine):
    operation = NAME

    def __init__(self) -> None:
        super().__init__()
        self.requests = self.preempted = 0
        self.scheduled = False

    @initialize(
        reqs=st.sampled_from((4, 2, 3)),
        tokens=st.sampled_from((24, 8)),
        block_size=st.sampled_from((4, 1, 2, 16, 6)),
        other=st.sampled_from((0, 2, 8)),
        ranks=st.sampled_from((1, 2)),
        interleave=st.sampled_from((1, 2, 4)),
        waiting=st.lists(st.tuples(_TOKENS, _SMALL), max_size=3),
    )
    def start(
        self,
        reqs: int,
        tokens: int,
        block_size: int,
        other: int,
        ranks: int,
        interleave: int,
        waiting: list[tuple[int, int]],
    ) -> None:
        """Choose the sizes of the buffers, and add requests."""
        chosen = {"max_num_reqs": reqs, "max_num_tokens": tokens, "block_size": block_size}
        chosen |= {"other_block_size": other, "ranks": ranks, "interleave": interleave}
        self.params = _SIZES | chosen
        for prompt, cached in waiting:
            self.add(prompt, cached)

    @rule(tokens=_TOKENS, cached=_SMALL)
    def add(self, tokens: int, cached: int) -> None:
        """Add a request, some of its tokens cached."""
        self.requests = min(self.requests + 1, self.params["max_num_reqs"])
        self.step("add", tokens=tokens, cached=cached)

    @rule(lens=_LENS, first=_SMALL, pad_reqs=_SMALL, pad_tokens=_SMALL, wide=st.booleans())
    def schedule(
        self, lens: list[int], first: int, pad_reqs: int, pad_tokens: int, wide: bool
    ) -> None:
        """Schedule a step, with or without graph padding."""
        self.scheduled = True
        padding = {"pad_reqs": pad_reqs, "pad_tokens": pad_tokens}
        self.step("schedule", lens=lens, first=first, **padding, wide=wide)

    @precondition(lambda self: self.requests)
    @rule(lens=_LENS, drafts=_COUNTS, accepted=_COUNTS, leaves=st.none() | _SMALL)
    def serve(
        self, lens: list[int], drafts: list[int], accepted: list[int], leaves: int | None
    ) -> None:
        """Draft, schedule and sample; a request may be aborted in between."""
        self.step("draft", lens=drafts)
        self.step("schedule", lens=lens, first=0, pad_reqs=0, pad_tokens=0, wide=False)
        if leaves is not None:
            self.abort(leaves)
        self.sample(accepted)

    @precondition(lambda self: self.scheduled)
    @rule(accepted=_COUNTS)
    def sample(self, accepted: list[int]) -> None:
        """Sample the scheduled step."""
        self.scheduled = False
        self.step("sample", accepted=accepted)

    @precondition(lambda self: self.scheduled)
    @rule()
    def pool(self) -> None:
        """Finish a step of prompts without sampling."""
        self.step("pool")

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL)
    def abort(self, which: int) -> None:
        """Abort a request: its slot and its blocks are free."""
        self.requests -= 1
        self.step("abort", which=which)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL)
    def preempt(self, which: int) -> None:
        """Preempt a request."""
        self.requests -= 1
        self.preempted += 1
        self.step("preempt", which=which)

    @precondition(lambda self: self.preempted)
    @rule(cached=_SMALL)
    def resume(self, cached: int) -> None:
        """Resume the request that was preempted first."""
        self.preempted -= 1
        self.requests += 1
        self.step("resume", cached=cached)

    @rule(reqs=_SMALL, tokens=_TOKENS)
    def dummy(self, reqs: int, tokens: int) -> None:
        """Run a dummy step."""
        self.step("dummy", reqs=reqs, tokens=tokens)

    @precondition(lambda self: self.requests)
    @rule(which=_SMALL, group=_SMALL, overwrite=st.booleans())
    def overflow(self, which: int, group: int, overwrite: bool) -> None:
        """Append more blocks than a row holds."""
        self.step("overflow", which=which, group=group, overwrite=overwrite)


def _observe(names: dict[str, Any]) -> Outputs:
    """Return the step's results, all buffers, and what is behind the live blocks."""
    outputs: Outputs = {name: names[name] for name in _BUFFERS}
    outputs["logits"] = names["logits"]
    for pair, fields in (
        ("expanded", ("expanded slots", "expanded places")),
        ("counted", ("num_sampled", "num_rejected")),
    ):
        outputs |= dict(zip(fields, names[pair] or (None, None), strict=True))
    for rank, table in enumerate(TABLES):
        if table in names:
            outputs |= _tables(names, table, rank)
    return outputs


def _tables(names: dict[str, Any], table: str, rank: int) -> Outputs:
    outputs: Outputs = {f"slots of rank {rank}": names[table].slot_mappings}
    live, gathered = names["live"], names["gathered"]
    if live is None or gathered is None:
        return outputs
    for number, rows in enumerate(gathered[rank]):
        kept = rows.clone()
        for row, count in enumerate(live[number]):
            kept[row, count:] = 0
        outputs[f"table {number} of rank {rank}"] = kept
    whole = [rows.tolist() for rows in gathered[rank]]
    outputs[f"whole tables of rank {rank}"] = Free(tables=whole)
    groups = {(table, number): rows for number, rows in enumerate(gathered[rank])}
    moved = [number for _, number in moved_tensors(names, groups)]
    outputs[f"moved buffers of rank {rank}"] = moved
    return outputs


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    if not (isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor)):
        return ""
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return ""
    right, wrong = expected[expected != got], got[expected != got]
    if place.field == "seq_lens" and not right.any():
        return "padded row keeps an earlier step's length"
    if place.field.startswith("slots") and bool((right == -1).all()):
        return "a valid slot where none is due"
    if place.field == "num_computed_tokens" and bool((right < wrong).all()):
        return "rejected tokens count as computed"
    if place.field in ("last_sampled_tokens", "total_len", "num_sampled"):
        return "a token of a row that is still in its prompt, or was rejected"
    return ""


def _case(*steps: Step, **sizes: int) -> Case:
    return Case(NAME, None, _SIZES | sizes | {"steps": list(steps)})


def _add(tokens: int, cached: int = 0) -> Step:
    """Return the step that adds a request of `tokens` + 1 tokens."""
    return {"do": "add", "tokens": tokens, "cached": cached}


def _schedule(*lens: int, **padding: Any) -> Step:
    """Return a step with up to `lens` + 1 prompt tokens of each request."""
    unpadded = {"first": 0, "pad_reqs": 0, "pad_tokens": 0, "wide": False}
    return {"do": "schedule", "lens": list(lens), **unpadded, **padding}


def _sample(*accepted: int) -> Step:
    return {"do": "sample", "accepted": list(accepted)}


def _abort(which: int) -> Step:
    return {"do": "abort", "which": which}


def _boundaries() -> Iterator[tuple[str, Case]]:
    draft = {"do": "draft", "lens": [3, 1]}
    chunks = (_add(10), _add(2), *(_schedule(3), _sample(0)) * 3)
    decodes = (draft, _schedule(0), _sample(1, 0)) * 2
    two = {"other_block_size": 2}
    yield "chunked prefill, then drafts", _case(*chunks, *decodes)
    yield "two groups", _case(*chunks, *decodes, **two)
    for turn in (1, 2, 4):
        ranked = {"ranks": 2, "interleave": turn, "other_block_size": 8}
        yield f"two ranks, turns of {turn}", _case(*chunks, *decodes, **ranked)
    longer = (_add(15), _schedule(15), _sample(0), _abort(0))
    yield "shorter request in a longer slot (K18)", _case(*longer, _add(1), _schedule(1), **two)
    padded = _schedule(0, pad_reqs=2, pad_tokens=3)
    yield (
        "padded rows after more requests (K13)",
        _case(_add(3), _add(3), _add(3), _schedule(3), _abort(0), _abort(0), padded),
    )
    yield "nobody left, padded rows (K13)", _case(_add(3), _schedule(3), _abort(0), padded)
    dummy = {"do": "dummy", "reqs": 3, "tokens": 5}
    yield "dummy step after a step (K17)", _case(_add(5), _schedule(5), dummy, _schedule(5))
    yield (
        "aborted while it is computed",
        _case(_add(3), _add(4), _schedule(9), _abort(0), _sample(0), _add(6), _schedule(9)),
    )
    preempted = ({"do": "preempt", "which": 0}, _schedule(4), {"do": "resume", "cached": 3})
    yield (
        "preempted and resumed",
        _case(*chunks, *decodes, *preempted, *(_schedule(9), _sample(0)) * 2, *decodes),
    )
    swapped = ({"do": "preempt", "which": 0}, {"do": "resume", "cached": 0}, _sample(1))
    yield "resumed while it is computed", _case(*chunks, draft, _schedule(0), *swapped)
    overflows = [
        {"do": "overflow", "which": 0, "group": group, "overwrite": overwrite}
        for group in range(2)
        for overwrite in (False, True)
    ]
    yield "refused appends change nothing", _case(_add(7, 5), *overflows, _schedule(7), **two)
    yield "pooling", _case(_add(7), *(_schedule(2), {"do": "pool"}) * 3)
    verified = (draft, _schedule(0), _sample(0))
    yield "rejected draft", _case(_add(0), _schedule(0), _sample(0), *verified)
    accepted = (draft, _schedule(0), _sample(3))
    yield "all drafts accepted, then rejected", _case(*chunks, *accepted, *verified)
    yield "int64 rows, other order", _case(*chunks, _schedule(2, first=1, wide=True))
    yield "one slot, one token", _case(_add(0), _schedule(0), _sample(0), max_num_reqs=1)
    wide = _schedule(8, pad_tokens=24, wide=True)
    yield "block size 1, padded to all tokens", _case(_add(8), wide, _sample(0), block_size=1)
    yield from _pairs()


def _pairs() -> Iterator[tuple[str, Case]]:
    """Yield pairs of steps between two scheduled ones, of the first request where they take one."""
    kinds: dict[str, list[Step]] = {
        "add": [_add(3, 1)],
        "schedule": [_schedule(1)],
        "draft": [{"do": "draft", "lens": [3, 1]}],
        "sample": [_sample(1, 0)],
        "pool": [{"do": "pool"}],
        "abort": [_abort(0)],
        "preempt": [{"do": "preempt", "which": 0}],
        "resume": [{"do": "resume", "cached": 2}],
        "dummy": [{"do": "dummy", "reqs": 1, "tokens": 5}],
    }
    before = [*[_abort(0)] * 4, _add(4, 2), _add(9), _schedule(9, 3), _sample(0), _schedule(4)]
    for name, steps in step_pairs(kinds, before, [_schedule(2), _sample(1)]):
        yield name, _case(*steps, other_block_size=2)


def _from_batch(batch: Batch) -> Iterator[Case]:
    """Yield a sequence of up to four of the batch's requests, with short prompts."""
    rows = list(zip(batch.query_lens, batch.computed_lens, strict=True))[:4]
    requests = [_add((query + computed) % 20, computed % 20) for query, computed in rows]
    lens = [min(query, 9) for query, _ in rows] or [0]
    served = (_schedule(*lens, pad_reqs=1), _sample(0), {"do": "draft", "lens": [2, 0]})
    sizes = {"block_size": min(batch.block_size, 16), "ranks": 1 + batch.num_tokens % 2}
    yield _case(*requests, *served, *served, _abort(0), *served, **sizes)


runner_sequence = Operation(
    name=NAME,
    section="13",
    summary="request slots through the steps of a model runner",
    inputs=sequence_inputs(
        params=RUNNER_PARAMS,
        machine=_Machine,
        boundaries=_boundaries,
        from_batch=_from_batch,
    ),
    call=SequenceCall(parts=("BlockTables", *FUNCTIONS), write=script, observe=_observe),
    contract=Contract(diagnose=_diagnose, consume=steps_consumed),
    bench=Bench(never=SEQUENCE_NOT_TIMED),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (runner_sequence,)
