"""Operations of SPEC.md section 11: ranges of prompt positions that attend to each other.

Bug classes: a range of another request's row, positions that forget the computed tokens, an end
taken for exclusive, rows behind the tokens that are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import Contract, Inputs, Operation
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Few, Params
from attnproof.reference import fill_mm_prefix_query_ranges as fill_reference

FILL, COMPUTE = "fill_mm_prefix_query_ranges", "compute_mm_prefix_range_tensor"
_RANGES = "mm_prefix_range"
_OFFSETS = "query_start_loc_cpu"
Ranges = dict[int, list[tuple[int, int]]]


_Range = Annotated[list[Count], Meta(max_length=3)]
"""Row, start and end of a range; the row alone for a row with an empty list."""
_Ranges = Annotated[list[_Range], Meta(max_length=2**16)]


class _FillParams(Params):
    ranges: _Ranges | None
    spare: Few = 0
    """Rows of the buffer behind the tokens."""


class _ComputeParams(Params):
    ranges: _Ranges | None
    rows: Few


def _ranges_of(case: Case) -> Ranges | None:
    """Return the ranges by row; a row beyond the last one stands for the last one."""
    entries, batch = case.params["ranges"], case.batch
    if entries is None:
        return None
    rows = batch.num_requests + batch.padded_requests if batch else case.params["rows"]
    ranges: Ranges = {}
    for row, *bounds in (entry for entry in entries if entry and rows):
        pairs = ranges.setdefault(min(row, rows - 1), [])
        if len(bounds) == 2:
            pairs.append((bounds[0], bounds[1]))
    return ranges


def _problem(case: Case) -> str:
    ranges = _ranges_of(case) or {}
    for pairs in ranges.values():
        real = sorted(pair for pair in pairs if pair[0] < pair[1])
        if any(following[0] <= pair[1] for pair, following in pairwise(real)):
            return "ranges: overlap"
    return ""


def _unreal(case: Case) -> str:
    empty = any(a > b for pairs in (_ranges_of(case) or {}).values() for a, b in pairs)
    return "an engine makes ranges with a position" if empty else ""


def _fill_case(batch: Batch, ranges: list[list[int]] | None, spare: int = 0) -> Case:
    return Case(FILL, batch, {"ranges": ranges, "spare": spare})


def _compute_case(ranges: list[list[int]] | None, rows: int) -> Case:
    return Case(COMPUTE, None, {"ranges": ranges, "rows": rows})


_POINTS = st.lists(st.integers(0, 60), max_size=6, unique=True).map(sorted)


@st.composite
def _range_lists(draw: st.DrawFn, rows: int) -> list[list[int]] | None:
    """Draw disjoint ranges between points, two a range; an odd point makes one of itself."""
    if not rows or draw(st.integers(0, 7)) == 7:
        return draw(st.sampled_from((None, [])))
    ranges = []
    for row in draw(st.lists(st.integers(0, rows - 1), max_size=rows, unique=True)):
        points = draw(_POINTS)
        if len(points) % 2:
            at = 2 * draw(st.integers(0, len(points) // 2))
            points = [*points[: at + 1], *points[at:]]
        ends = zip(points[::2], points[1::2], strict=True)
        ranges += [[row, start, end] for start, end in ends] or [[row]]
        if draw(st.integers(0, 3)) == 3:  # one position, perhaps inside a range
            point = draw(st.integers(0, 60))
            ranges.append([row, point, point])
    return ranges


@st.composite
def _fill_cases(draw: st.DrawFn) -> Case:
    batch = draw(batches())
    ranges = draw(_range_lists(batch.num_requests))
    return _fill_case(batch, ranges, draw(st.integers(0, 3)))


@st.composite
def _compute_cases(draw: st.DrawFn) -> Case:
    rows = draw(st.integers(0, 5))
    return _compute_case(draw(_range_lists(rows)), rows)


def _fill_boundaries() -> Iterator[tuple[str, Case]]:
    two = make_batch([3, 2], [3, 0], 4)
    yield "SPEC example", _fill_case(two, [[0, 1, 4], [1, 0, 0]])
    yield "no ranges", _fill_case(two, None, 2)
    yield "rows without ranges", _fill_case(two, [[1]], 2)
    yield "ranges before and behind the query", _fill_case(two, [[0, 0, 2], [0, 6, 9]], 2)
    chunk = make_batch([8], [8], 4)
    for start, end in ((0, 8), (7, 9), (8, 15), (15, 16), (10, 12), (0, 7), (16, 20), (2, 30)):
        name = f"positions {start} to {end} of a chunk of 8 to 15"
        yield name, _fill_case(chunk, [[0, start, end]], 1)
    yield "several ranges of a request", _fill_case(chunk, [[0, 12, 13], [0, 4, 9], [0, 10, 11]])
    yield "range of one position", _fill_case(chunk, [[0, 9, 9], [0, 11, 10]], 1)
    around = [[0, 8, 9], [0, 10, 10], [0, 12, 14]]
    yield "one position between two ranges", _fill_case(chunk, around)
    yield "one position inside a range", _fill_case(chunk, [[0, 7, 14], [0, 10, 10]], 1)
    yield "only the second request", _fill_case(two, [[1, 0, 1]], 3)
    padded = make_batch([3, 2], [3, 0], 4, padded_requests=2, padded_tokens=3)
    yield "padded rows and tokens", _fill_case(padded, [[0, 4, 5]], 4)
    yield "no requests", _fill_case(make_batch([], [], 4), None, 2)
    yield "idle row with a range", _fill_case(make_batch([0, 2], [4, 0], 4), [[0, 0, 3], [1, 0, 1]])
    strided = make_batch([3, 2], [3, 0], 4, strided=True, dtype="int64")
    yield "strided int64", _fill_case(strided, [[0, 1, 4], [1, 0, 1]], 2)
    yield "highest positions", _fill_case(two, [[0, 4, 2**31 - 1]], 1)
    yield "long prompt", _fill_case(make_batch([3000], [0], 16), [[0, 5, 1000], [0, 1001, 2999]], 1)


def _compute_boundaries() -> Iterator[tuple[str, Case]]:
    yield "SPEC example", _compute_case([[0, 1, 4], [0, 6, 9], [2, 0, 3]], 3)
    yield "no ranges", _compute_case(None, 2)
    yield "rows without ranges", _compute_case([[1]], 3)
    yield "only empty ranges", _compute_case([[0, 5, 5], [1, 0, 0]], 2)
    yield "an empty range beside another", _compute_case([[0, 5, 5], [0, 7, 8], [1, 1, 0]], 2)
    between = [[0, 2, 4], [0, 5, 5], [0, 7, 8]]
    yield "one position between two ranges", _compute_case(between, 1)
    yield "one position inside a range", _compute_case([[0, 3, 3], [0, 2, 4]], 1)
    yield "no sequences", _compute_case(None, 0)
    yield "fewer rows with ranges than sequences", _compute_case([[0, 0, 1]], 4)
    yield "highest positions", _compute_case([[0, 0, 2**31 - 1]], 1)
    many = [[row, 10 * i, 10 * i + 3] for row in range(260) for i in range(16)]
    yield "thousands of ranges", _compute_case(many, 260)
    yield "many sequences", _compute_case([[i, i, i + 2] for i in range(1, 300, 2)], 300)


def _step_ranges(batch: Batch) -> list[list[int]]:
    """Return a range over the middle of each prompt."""
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    return [[row, n // 4, n // 2] for row, n in enumerate(lengths) if n > 3]


def _compute_steps(batch: Batch) -> Iterator[Case]:
    rows = min(batch.num_requests, 1024)
    yield _compute_case([entry for entry in _step_ranges(batch) if entry[0] < rows], rows)


def _prepare_fill(case: Case, pattern: int, device: str) -> Call:
    batch, stale = batch_of(case), STALE_PATTERNS[pattern]
    arrays, step = batch_arrays(batch), 2 if batch.strided else 1
    tokens = int(arrays.query_start_loc[-1]) + case.params.get("spare", 0)
    buffer = np.full((tokens, 2), stale, dtype=np.int32)
    pieces = [
        Piece(_OFFSETS, arrays.query_start_loc, True, (step,)),
        Piece("seq_lens_cpu", arrays.seq_lens, True, (step,)),
        Piece("out", buffer, True, (2 * step + step - 1, step)),
    ]
    arena = Arena(pieces, stale, device)
    ranges = _ranges_of(case)
    args = {
        "out": arena.tensors["out"].numpy(),
        _RANGES: ranges,
        _OFFSETS: arena.tensors[_OFFSETS],
        "seq_lens_cpu": arena.tensors["seq_lens_cpu"],
    }
    plain, written = {_RANGES: ranges}, frozenset({"out"})
    return Call(args, arena=arena, plain=plain, written=written, facts=BatchFacts(batch=batch))


def _fill_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Compare each token's range with the one around its position."""
    expected, ranges = expected_tokens(call.facts.batch), call[_RANGES] or {}
    right = np.full((len(expected.positions), 2), -1, np.int64)
    for row, pairs in ranges.items():
        for start, end in pairs:
            inside = (expected.requests == row) & (start < end)
            inside &= (expected.positions >= start) & (expected.positions <= end)
            right[inside] = start, end
    written = len(right) if (right >= 0).any() else 0
    if outputs["result"] != written:
        yield Violation("result", "is not the number of tokens, or 0 without a range")
    elif (outputs["out"][:written] != right[:written]).any():
        yield Violation("out", "gives a token another range than that of its position")


def _prepare_compute(case: Case, _pattern: int, device: str) -> Call:
    ranges = _ranges_of(case)
    args = {_RANGES: ranges, "num_seqs": case.params["rows"], "device": torch.device(device)}
    return Call(args, plain={_RANGES: ranges})


def _compute_outputs(call: Call, result: Any) -> Outputs:
    """Return the real ranges of each sequence, and what is wrong with the tensor's form."""
    rows, form = call["num_seqs"], ""
    if result is None:
        return {"ranges": [[] for _ in range(rows)], "form": form}
    if not isinstance(result, torch.Tensor):
        raise TypeError("expected a tensor or None")
    if result.dtype != torch.int32 or result.device.type != torch.device(call["device"]).type:
        form = f"{result.dtype} on {result.device.type}"
    if result.ndim != 3 or result.shape[0] != rows or result.shape[2] != 2:
        raise TypeError(f"expected shape ({rows}, ranges, 2), got {tuple(result.shape)}")
    ranges = [[tuple(pair) for pair in row if pair[0] < pair[1]] for row in result.tolist()]
    return {"ranges": ranges, "form": form}


def _compute_invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    ranges = call[_RANGES] or {}
    for row, row_ranges in enumerate(outputs["ranges"]):
        if row_ranges != [pair for pair in ranges.get(row, []) if pair[0] < pair[1]]:
            yield Violation("ranges", "are not those of the sequence")
            return


def _has_tokens(case: Case) -> bool:
    return case.num_tokens > 0


def _has_rows(case: Case) -> bool:
    return case.num_requests > 0 or case.params.get("rows", 0) > 0


def _overlapping(ranges: Ranges | None) -> Ranges:
    return (ranges or {}) | {0: [(1, 3), (3, 5)]}


_RANGE_FAULTS = {
    "ranges that overlap": Fault(_RANGES, _overlapping, applies=_has_rows),
    "range of a row that does not exist": wrong_value(_RANGES, {10**6: [(0, 1)]}),
    "range of a negative row": wrong_value(_RANGES, {-1: [(0, 1)]}),
    "range that begins before 0": Fault(_RANGES, lambda _: {0: [(-1, 2)]}, applies=_has_rows),
}


fill_mm_prefix_query_ranges = Operation(
    name=FILL,
    section="11",
    summary="the range of prompt positions that each query token lies in",
    inputs=Inputs(
        params=_FillParams,
        problem=_problem,
        unreal=_unreal,
        cases=_fill_cases,
        boundaries=_fill_boundaries,
        from_batch=lambda batch: [_fill_case(batch, _step_ranges(batch), 3)],
        faults=faults_of(fill_reference, _prepare_fill)
        | _RANGE_FAULTS
        | {
            "buffer of too few rows": Fault("out", lambda out: out[:0], applies=_has_tokens),
            "int64 buffer": Fault("out", lambda out: out.astype(np.int64)),
            "flat buffer": Fault("out", np.ndarray.flatten),
            "sequence shorter than its query": Fault(
                "seq_lens_cpu",
                lambda _, offsets: offsets.diff() - 1,
                applies=_has_tokens,
                reads=(_OFFSETS,),
            ),
        },
    ),
    call=FunctionCall(
        prepare=_prepare_fill,
        outputs=lambda call, result: {"result": result, "out": call["out"]},
    ),
    contract=Contract(invariants=_fill_invariants, may_alias=frozenset({"out"})),
)

compute_mm_prefix_range_tensor = Operation(
    name=COMPUTE,
    section="11",
    summary="the ranges of prompt positions of each sequence, as a tensor",
    inputs=Inputs(
        params=_ComputeParams,
        problem=_problem,
        unreal=_unreal,
        has_batch=False,
        cases=_compute_cases,
        boundaries=_compute_boundaries,
        from_batch=_compute_steps,
        faults=_RANGE_FAULTS
        | {
            "ranges of another type": wrong_type(_RANGES),
            "negative number of sequences": wrong_value("num_seqs", -1),
        },
    ),
    call=FunctionCall(prepare=_prepare_compute, outputs=_compute_outputs),
    contract=Contract(invariants=_compute_invariants),
)

OPERATIONS = (fill_mm_prefix_query_ranges, compute_mm_prefix_range_tensor)
