"""Operation of SPEC.md section 11: the micro-batches of an engine step.

The padded slices are also given to `split_attn_metadata`: the children must partition the
batch, as a kernel sees it.

Bug classes: a slice that misses a request or holds one without a token, a last slice without
the padding, bounds that are numpy scalars.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, metadata_violations, slot_violations
from attnproof.harness.model.call import Call, Facts, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Bench, Contract, Inputs, Operation
from attnproof.harness.model.place import Place, child_outputs, of_children
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.faults import wrong_value
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Counts, Params, Positive, Some
from attnproof.reference import maybe_create_ubatch_slices as reference
from attnproof.reference import split_attn_metadata
from attnproof.reference.interface import UBatchSlice

NAME = "maybe_create_ubatch_slices"
_LISTS = ("num_slices", "num_padded_slices")
_SLICE = ("request_start", "request_stop", "token_start", "token_stop")
_BOUNDS = (*_SLICE, *(f"padded_{name}" for name in _SLICE))
_Bounds = tuple[int, int, int, int]
"""(r0, r1, t0, t1): requests [r0, r1) and tokens [t0, t1)."""


@dataclass(frozen=True, kw_only=True)
class _StepFacts(Facts):
    batch: Batch
    cuts: tuple[int, ...]
    """Tokens at which slices begin, without the first."""


class _Params(Params):
    ubatches: Some
    """Micro-batches."""
    point: Positive | None = None
    """Tokens of each micro-batch but the last, None for equal parts."""
    points: Counts | None = None
    """Points of a list, which is then given instead of `point`."""
    wide: bool = False
    ubatching: bool = True
    """False if the step is not cut at all."""


def _cuts(batch: Batch, params: dict[str, Any]) -> list[int]:
    """Return the points at which the tokens are cut."""
    if params.get("points") is not None:
        return list(params["points"])
    tokens = batch.num_tokens + batch.padded_tokens
    step = params.get("point") or tokens // params["ubatches"]
    return [step * i for i in range(1, params["ubatches"])]


def _problem(case: Case) -> str:
    batch, params = batch_of(case), case.params
    if not params.get("ubatching", True):
        return ""
    if batch.dcp_local_seq_lens is not None:
        return "batch.dcp_local_seq_lens: a cut request has no rank share"
    points = _cuts(batch, params)
    if len(points) != params["ubatches"] - 1:
        return "points: not one fewer than ubatches"
    if any(start >= end for start, end in pairwise([0, *points, batch.num_tokens])):
        return "points: do not rise within the tokens"
    return ""


def _unreal(case: Case) -> str:
    if case.params["ubatches"] < 2:
        return "an engine makes at least two micro-batches"
    if case.params.get("point") or case.params.get("points") is not None:
        return "an engine gives no split point"
    return "" if batch_of(case).causal else "an engine cuts causal batches only"


def _case(batch: Batch, ubatches: int = 2, **more: Any) -> Case:
    """Return a case; `more` are `point` or `points`, and flags."""
    return Case(NAME, batch, {"ubatches": ubatches} | more)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches(min_requests=1))
    wide, most = draw(st.booleans()), min(batch.num_tokens, 5)
    if not most or draw(st.integers(0, 9)) == 9:
        return _case(batch, wide=wide, ubatching=False)
    ubatches = draw(st.integers(1, most))
    step = (batch.num_tokens + batch.padded_tokens) // ubatches
    kind = draw(st.sampled_from(("points", "point", "default")))
    if kind == "default" and step * (ubatches - 1) < batch.num_tokens:
        return _case(batch, ubatches, wide=wide)
    if kind == "point":
        largest = (batch.num_tokens - 1) // max(1, ubatches - 1)
        return _case(batch, ubatches, wide=wide, point=draw(st.integers(1, max(1, largest))))
    inside = st.integers(1, max(1, batch.num_tokens - 1))
    points = st.lists(inside, min_size=ubatches - 1, max_size=ubatches - 1, unique=True)
    return _case(batch, ubatches, wide=wide, points=sorted(draw(points)))


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([3, 1, 4, 2], [2, 5, 0, 7], 4)
    yield "SPEC example", _case(make_batch([4, 3], [0, 0], 4, padded_requests=1, padded_tokens=1))
    for point in (1, 3, 4, 9):  # inside the first and last request, and at edges of others
        yield f"cut at token {point}", _case(mixed, point=point)
    yield "four micro-batches", _case(mixed, 4)
    yield "list of points", _case(mixed, 3, points=[4, 5])
    yield "one micro-batch", _case(mixed, 1)
    yield "as many micro-batches as tokens", _case(mixed, 10)
    yield "two cuts inside one request", _case(make_batch([20], [7], 4), 3, points=[5, 11])
    decodes = make_batch([1] * 6, [3] * 6, 4, padded_requests=2, padded_tokens=2)
    yield "decodes of a larger graph", _case(decodes)
    yield (
        "padding that fills half a micro-batch",
        _case(make_batch([5], [1], 4, padded_requests=1, padded_tokens=3)),
    )
    yield "padded rows, no padded tokens", _case(make_batch([2, 2], [3, 1], 4, padded_requests=2))
    idle = make_batch([0, 2, 0, 2, 0], [4, 1, 6, 0, 2], 4)
    for point in (1, 2, 3):
        yield f"idle rows, cut at token {point}", _case(idle, point=point)
    yield "int64 numbers of tokens", _case(mixed, wide=True)
    yield "no ubatching", _case(mixed, ubatching=False)
    yield "no ubatching of no requests", _case(make_batch([], [], 4), ubatching=False)
    yield (
        "many requests",
        _case(
            make_batch([1 + row % 2 for row in range(600)], [row % 7 for row in range(600)], 4), 3
        ),
    )


def _steps(batch: Batch) -> Iterator[Case]:
    step = (batch.num_tokens + batch.padded_tokens) // 2
    yield _case(batch, ubatching=0 < step < batch.num_tokens)


def _timed(batch: Batch) -> Iterator[Case]:
    return (case for case in _steps(batch) if case.params["ubatching"])


def _prepare(case: Case, pattern: int, _device: str) -> Call:
    batch, params = batch_of(case), case.params
    scheduled = np.array(batch.query_lens, dtype=np.int64 if params.get("wide") else np.int32)
    name = "num_scheduled_tokens"
    arena = Arena([Piece(name, scheduled, True, (1,))], STALE_PATTERNS[pattern])
    points = params.get("points")
    args = {
        "should_ubatch": params.get("ubatching", True),
        name: arena.tensors[name].numpy(),
        "num_tokens_padded": batch.num_tokens + batch.padded_tokens,
        "num_reqs_padded": batch.num_requests + batch.padded_requests,
        "num_ubatches": params["ubatches"],
        "split_point": params.get("point") if points is None else list(points),
    }
    cuts = tuple(_cuts(batch, params)) if args["should_ubatch"] else ()
    plain = {} if points is None else {"split_point": args["split_point"]}
    return Call(args, arena=arena, plain=plain, facts=_StepFacts(batch=batch, cuts=cuts))


def _outputs(_call: Call, result: Any) -> Outputs:
    """Return the number of slices of each list, and the bounds of each slice."""
    counts: Outputs = {
        Place(name): None if slices is None else len(slices)
        for name, slices in zip(_LISTS, result, strict=True)
    }
    ubatches = zip(*(slices or () for slices in result), strict=False)
    return counts | of_children(
        dict(zip(_BOUNDS, (*_bounds_of(unpadded), *_bounds_of(padded)), strict=True))
        for unpadded, padded in ubatches
    )


def _bounds_of(ubatch: Any) -> _Bounds:
    """Return the bounds (r0, r1, t0, t1) of a slice."""
    rows, tokens = ubatch.request_slice, ubatch.token_slice
    return rows.start, rows.stop, tokens.start, tokens.stop


def _slices(outputs: Outputs) -> tuple[list[_Bounds], list[_Bounds]]:
    """Return the bounds of the slices, and of the padded ones."""
    count = min(outputs[Place(name)] or 0 for name in _LISTS)
    rows = [child_outputs(outputs, i) for i in range(count)]
    every = [[row[name] for name in _BOUNDS] for row in rows]
    slices = [(a, b, c, d) for a, b, c, d, *_ in every]
    return slices, [(a, b, c, d) for *_, a, b, c, d in every]


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check the partition of tokens, the requests of each slice, and the padded slices."""
    counts = {outputs[Place(name)] for name in _LISTS}
    if not call["should_ubatch"]:
        if counts != {None}:
            yield Violation(_LISTS[0], "is made without ubatching")
        return
    if counts != {call["num_ubatches"]}:
        yield Violation(_LISTS[0], "has not as many slices as micro-batches")
        return
    batch, (slices, padded) = call.facts.batch, _slices(outputs)
    starts = [0, *call.facts.cuts]
    wanted = list(pairwise([*starts, batch.num_tokens]))
    if [row[2:] for row in slices] != wanted:
        yield Violation("[].token_stop", "does not cut the tokens at the split points")
        return
    offsets = [0, *accumulate(batch.query_lens)]
    for r0, r1, t0, t1 in slices:
        rows = [r for r, (a, b) in enumerate(pairwise(offsets)) if max(a, t0) < min(b, t1)]
        if (r0, r1) != (rows[0], rows[-1] + 1):
            yield Violation("[].request_stop", "does not hold the requests of its tokens")
            return
    last = slices[-1]
    stretched = (last[0], call["num_reqs_padded"], last[2], call["num_tokens_padded"])
    if padded != [*slices[:-1], stretched]:
        yield Violation(
            "[].padded_token_stop", "is not the slices with the padding in the last one"
        )


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that the children of the padded slices partition the batch's tokens and rows."""
    field, (_, rows), batch = _LISTS[1], _slices(outputs), call.facts.batch
    if not call["should_ubatch"]:
        return
    metadata, _ = lay_out(batch)
    ubatches = [UBatchSlice(slice(r0, r1), slice(t0, t1)) for r0, r1, t0, t1 in rows]
    try:
        children = split_attn_metadata(ubatches, metadata)
    except (ValueError, TypeError) as error:
        yield Violation(field, "cannot be split", str(error))
        return
    slots = torch.cat([child.slot_mapping for child in children])
    if not torch.equal(slots, metadata.slot_mapping[: metadata.num_actual_tokens]):
        yield Violation(field, "does not partition the tokens of the batch")
        return
    expected = expected_tokens(batch)
    for child, (_, _, t0, t1) in zip(children, rows, strict=True):
        tokens = np.arange(t0, min(t1, batch.num_tokens))
        for violation in (
            *metadata_violations(expected, vars(child), tokens=tokens),
            *slot_violations(expected, child.slot_mapping, "slot_mapping", tokens=tokens),
        ):
            yield violation._replace(field=field)


def _diagnose(_call: Call, place: Place, expected: Any, got: Any) -> str:
    """Return the diagnosis of a slice with other requests, "" for other fields."""
    if "request" not in place.field or not isinstance(got, int):
        return ""
    more = got < expected if "start" in place.field else got > expected
    return "holds a request without a token in it" if more else "misses a request of its tokens"


def _cut(case: Case) -> bool:
    return bool(case.params.get("ubatching", True)) and case.params["ubatches"] > 1


maybe_create_ubatch_slices = Operation(
    name=NAME,
    section="11",
    summary="the slices of the micro-batches of an engine step",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=_unreal,
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare)
        | {
            "float numbers of tokens": Fault(
                "num_scheduled_tokens", lambda counts: counts.astype(np.float32)
            ),
            "negative number of tokens": Fault(
                "num_scheduled_tokens",
                lambda counts: -1 - counts,
                applies=lambda case: case.num_requests > 0,
            ),
            "fewer padded tokens than tokens": Fault(
                "num_tokens_padded",
                lambda _, counts: int(counts.sum()) - 1,
                reads=("num_scheduled_tokens",),
            ),
            "fewer padded rows than requests": Fault(
                "num_reqs_padded",
                lambda _, counts: len(counts) - 1,
                reads=("num_scheduled_tokens",),
            ),
            "point at 0 (K4)": wrong_value("split_point", 0, _cut),
            "point at the end (K4)": Fault(
                "split_point",
                lambda _, counts: int(counts.sum()),
                applies=_cut,
                reads=("num_scheduled_tokens",),
            ),
            "points that fall": Fault(
                ("split_point", "num_ubatches"),
                lambda *_: ([2, 1], 3),
                applies=lambda case: _cut(case) and case.num_tokens > 2,
            ),
            "too few points": wrong_value("split_point", [], _cut),
            "point in the padding": Fault(
                ("split_point", "num_tokens_padded"),
                lambda _point, _tokens, counts: (int(counts.sum()) + 1, int(counts.sum()) + 3),
                "split_point",
                applies=_cut,
                reads=("num_scheduled_tokens",),
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(invariants=_invariants, consume=_consumed, diagnose=_diagnose),
    bench=Bench(cases=_timed),
)

OPERATIONS = (maybe_create_ubatch_slices,)
