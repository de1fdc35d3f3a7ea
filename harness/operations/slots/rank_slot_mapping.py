"""Operation of SPEC.md section 10: `build_slot_mapping` on every rank of a batch.

Bug classes: a local position that forgets the interleave within a turn, a token that two ranks
write or none, the column of a global position, products in 32 bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import (
    BatchArrays,
    batch_arrays,
    row_strides,
    table_piece,
)
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.ranks import Rank, rank_slot_violations
from attnproof.harness.model.call import Call, Facts, Outputs, Quantity
from attnproof.harness.model.call_kinds import ClassCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place, child_outputs, of_children
from attnproof.harness.model.violation import Violation, in_child
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.overlap import overlaps
from attnproof.harness.operations.shared.params import Lengths, Params, Positive, Tokens
from attnproof.harness.operations.slots.slot_mapping import batch_shares_blocks

NAME, _FUNCTION = "rank_slot_mapping", "build_slot_mapping"
_TENSORS = ("query_start_loc", "num_computed_tokens", "block_table")
_SIZES = st.sampled_from((2, 3, 4, 8, 1))
_EXTRA = st.integers(0, 7)
_PADDED = st.sampled_from((None, None, 0, 3))


@dataclass(frozen=True, kw_only=True)
class _RankFacts(Facts):
    batch: Batch
    ranks: tuple[Rank, ...]
    columns: int
    """Columns of the block table."""
    unwritten: np.ndarray
    """(T,) bool, True for tokens before their request's start_idx."""


class _Params(Params):
    size: Annotated[int, Meta(ge=1, le=64)]
    """Ranks that share a cache."""
    interleave: Positive
    """Positions that a rank owns in turn."""
    out_spare: Tokens | None = None
    """Entries of the output behind the tokens, None without an output."""
    num_padded: Tokens | None = None
    """Entries behind the tokens, None for a call without `num_padded_tokens`."""
    start_idx: Lengths | None = None
    columns: Count | None = None
    """Columns of the block table, None for all."""


def _problem(case: Case) -> str:
    size, interleave = batch_of(case).block_size, case.params["interleave"]
    padded, spare = case.params.get("num_padded"), case.params.get("out_spare")
    if size % interleave:
        return f"interleave: {interleave}, no divisor of {size}"
    fits = padded is None or spare is None or padded <= spare
    return "" if fits else f"num_padded: {padded}, beyond out_spare of {spare}"


def _case(batch: Batch, size: int, interleave: int = 1, **more: Any) -> Case:
    """Return a case; `more` are other parameters.

    `out_spare` and `num_padded` are entries of the buffer and of the result behind the tokens.
    """
    return Case(NAME, batch, {"size": size, "interleave": interleave} | more)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    batch = draw(batches())
    divisors = [d for d in (1, 2, 3, 4, 8, 16, batch.block_size) if batch.block_size % d == 0]
    size, interleave = draw(_SIZES), draw(st.sampled_from(divisors))
    more, extra = dict[str, Any](), draw(_EXTRA)
    if extra == 1:
        rows = batch.num_requests + batch.padded_requests
        some = st.lists(st.integers(0, 30), min_size=rows, max_size=rows)
        more["start_idx"] = draw(some)
    elif extra == 2:
        more["columns"] = draw(st.integers(0, 2))
    elif extra >= 5:
        more["out_spare"] = extra - 5
    padded = draw(_PADDED)
    if padded is not None:
        more["num_padded"] = min(padded, more.get("out_spare", padded))
    return _case(batch, size, interleave, **more)


def _boundaries() -> Iterator[tuple[str, Case]]:
    mixed = make_batch([1, 5, 0, 3], [7, 0, 4, 9], 4, spare_columns=2, order="descending")
    for size in (1, 2, 3):
        for interleave in (1, 2, 4):
            bug = " (K30)" if size > 1 and interleave == 4 else ""
            yield f"{size} ranks in turns of {interleave}{bug}", _case(mixed, size, interleave)
    yield "buffer with a stale tail (K17)", _case(mixed, 2, 2, out_spare=5)
    yield "padded length", _case(mixed, 2, 2, num_padded=70)
    yield "padded length in a longer buffer", _case(mixed, 2, 2, num_padded=1030, out_spare=1040)
    yield "window", _case(mixed, 2, 2, start_idx=[0, 3, 0, 11])
    yield "window in a buffer", _case(mixed, 2, 2, start_idx=[0, 3, 0, 11], out_spare=2)
    yield "sequence longer than its row's columns (K14)", _case(mixed, 2, columns=1)
    for edge in (-1, 0, 1):
        prompt = make_batch([32 + edge], [0], 8)
        yield f"{32 + edge} tokens on two ranks of blocks of 8", _case(prompt, 2, 4)
        continued = make_batch([3], [16 + edge], 8)
        yield f"continued at position {16 + edge}", _case(continued, 2, 8)
    yield "more ranks than tokens", _case(make_batch([2, 1], [0, 3], 16), 8, 16)
    yield "no requests", _case(make_batch([], [], 4), 2, out_spare=3)
    yield "only padded rows", _case(make_batch([], [], 4, padded_requests=3), 2, out_spare=3)
    for block_size in (1, 16, 256):
        highest = make_batch([40, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 60)
        yield f"highest block ids, block size {block_size} (K15)", _case(highest, 2)
    yield "more tokens than a kernel tile (K19)", _case(make_batch([2000], [3], 16), 2, 8)
    for tokens in (511, 512, 513):
        yield f"{tokens} tokens, a kernel tile has 512", _case(make_batch([tokens], [5], 16), 2)
    yield "position beyond 2**20", _case(make_batch([3], [2**20 + 254], 256), 4, 64)
    strided = make_batch([4, 3], [1, 6], 4, strided=True, dtype="int64")
    yield "strided int64", _case(strided, 2, 2, out_spare=3)
    yield "shared prefix blocks", _case(make_batch([2, 2], [16, 16], 4, shared=True), 2, 2)


def _steps(batch: Batch) -> Iterator[Case]:
    if batch.has_null_blocks:  # with fewer blocks a row, live positions would be in null blocks
        return
    yield _case(batch, 2 + batch.num_requests % 3, batch.block_size, out_spare=2)


def _table(arrays: BatchArrays, case: Case, stale: int) -> np.ndarray:
    """Return (R, W) int32: the blocks that a rank needs, `stale` in all other columns."""
    batch, size = batch_of(case), case.params["size"]
    columns = np.arange(arrays.block_table.shape[1])
    table = arrays.block_table.copy()
    table[columns >= -(-arrays.seq_lens // (size * batch.block_size))[:, None]] = stale
    return table[:, : case.params.get("columns")]


def _first_kept(case: Case, rows: int) -> np.ndarray | None:
    """Return the start_idx of each row, None without."""
    start_idx = case.params.get("start_idx")
    return None if start_idx is None else np.array([*start_idx, *[0] * rows][:rows], np.int64)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params, stale = batch_of(case), case.params, STALE_PATTERNS[pattern]
    arrays, step = batch_arrays(batch, pattern), 2 if batch.strided else 1
    table, first_kept = _table(arrays, case, stale), _first_kept(case, arrays.num_reqs)
    pieces = [
        Piece("query_start_loc", arrays.query_start_loc, False, (step,)),
        Piece("num_computed_tokens", arrays.num_computed_tokens, False, (step,)),
        table_piece("block_table", table, step),
    ]
    tokens, size = int(arrays.query_start_loc[-1]), params["size"]
    if first_kept is not None:
        kept = first_kept.astype(arrays.seq_lens.dtype)
        pieces.append(Piece("start_idx", kept, False, (step,)))
    if params.get("out_spare") is not None:
        out = np.full((size, tokens + params["out_spare"]), stale, dtype=np.int64)
        pieces.append(Piece("out", out, False, row_strides(out.shape, step)))
    arena = Arena(pieces, stale, device)
    more: dict[str, Any] = {
        name: arena.tensors[name] for name in ("start_idx", "out") if name in arena.tensors
    }
    if params.get("num_padded") is not None:
        more["num_padded_tokens"] = tokens + params["num_padded"]
    ranks = {"cp_size": size, "cp_rank": 0, "cp_interleave": params["interleave"]}
    expected = expected_tokens(batch)
    unwritten = np.zeros(tokens, bool)
    if first_kept is not None:
        unwritten = expected.positions < first_kept[expected.requests]
    return Call(
        {name: arena.tensors[name] for name in _TENSORS} | {"block_size": batch.block_size},
        more | ranks,
        arena=arena,
        written=frozenset({"out"}),
        facts=_RankFacts(
            batch=batch,
            ranks=tuple(Rank(size, rank, params["interleave"]) for rank in range(size)),
            columns=table.shape[1],
            unwritten=unwritten,
            tokens=tokens,
            result=Quantity.SLOTS,
        ),
    )


class _OnEveryRank(ClassCall):
    """Calls of the function, one for each rank."""

    def names(self, _operation: str) -> tuple[str, ...]:
        """Return the name of the function."""
        return (_FUNCTION,)

    def offered(self, own: dict[str, Any], ours: dict[str, Any], *, built_in: bool) -> Any:
        """Return the candidate's function if it has parameters for ranks."""
        function = super().offered(own, ours, built_in=built_in)
        try:
            return function if "cp_size" in inspect.signature(function).parameters else None
        except (TypeError, ValueError):  # not a function, or one without a signature
            return None


def _build(build: Any, call: Call) -> list[Any]:
    """Return the slots of each rank; a row of `out` belongs to each."""
    rank_slots = []
    for index, rank in enumerate((call["cp_rank"], *range(1, len(call.facts.ranks)))):
        changed = {"cp_rank": rank}
        if "out" in call.kwargs:
            changed["out"] = call["out"][index]
        rank_slots.append(build(*call.args.values(), **call.kwargs | changed))
    return rank_slots


def _outputs(call: Call, result: Any) -> Outputs:
    rows = call.kwargs.get("out")
    if rows is None:
        return of_children({"result": slots} for slots in result)
    return of_children(
        {"result": slots, "out": row} for slots, row in zip(result, rows, strict=True)
    )


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    facts, slots = call.facts, list[np.ndarray]()
    for index, rank in enumerate(facts.ranks):
        result = outputs[Place("result", child=index)]
        if not isinstance(result, torch.Tensor) or len(result) < facts.tokens:
            return
        slots.append(result.cpu().numpy()[: facts.tokens].astype(np.int64))
        yield from in_child(_rank_violations(call, slots[-1], rank), index)
    writers = sum((row >= 0).astype(np.int64) for row in slots)
    tokens = expected_tokens(facts.batch)
    turns = tokens.positions // (facts.batch.block_size * len(slots))
    right = ~facts.unwritten & (turns < facts.columns)
    if np.any(writers != right):
        yield Violation("[].result", "does not give each token to exactly one rank")


def _rank_violations(call: Call, slots: np.ndarray, rank: Rank) -> Iterator[Violation]:
    """Read the positions of a rank's tokens back from their slots."""
    facts, expected = call.facts, expected_tokens(call.facts.batch)
    mine = slots >= 0
    kept, rows = slots[mine], expected.requests[mine]
    if not batch_shares_blocks(facts.batch) and len(np.unique(kept)) != len(kept):
        yield Violation("result", "gives two tokens the same slot")
    block, place = np.divmod(kept, facts.batch.block_size)
    match = expected.table[rows] == block[:, None]
    match &= ~np.asarray(batch_arrays(facts.batch).stale_blocks)[rows]
    if not match.any(1).all():
        yield Violation("result", "writes into a block that its request does not own")
        return
    local = match.argmax(1) * facts.batch.block_size + place if len(kept) else kept
    turn, within = np.divmod(local, rank.interleave)
    positions = (turn * rank.size + rank.rank) * rank.interleave + within
    if (positions != expected.positions[mine]).any():
        yield Violation("result", "is not the slot of the token's position")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each token is written on exactly the rank that owns it, where it is read."""
    facts, expected = call.facts, expected_tokens(call.facts.batch)
    for index, rank in enumerate(facts.ranks):
        for field, slots in child_outputs(outputs, index).items():
            violations = rank_slot_violations(
                expected, rank, slots, field, columns=facts.columns, unwritten=facts.unwritten
            )
            yield from in_child(violations, index)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name tokens that are written on a rank that does not own them, or not where they are."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    facts, wrong = call.facts, np.flatnonzero((expected != got).cpu().numpy())
    if place.child is None or not len(wrong) or wrong[-1] >= facts.tokens:
        return ""
    rank, positions = facts.ranks[place.child], expected_tokens(facts.batch).positions[wrong]
    mine = positions // rank.interleave % rank.size == rank.rank
    if not mine.any():
        return "a slot for a token of another rank"
    without = mine.all() and (int64_array(got)[wrong] == -1).all()
    return "no slot on the rank that owns the token" if without else ""


def _over(parameter: str, applies: Callable[[Case], bool] = lambda _: True) -> dict[str, Fault]:
    """Return the faults of a buffer that shares an element with the argument."""

    def rows(out: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return offsets.new_zeros((len(out), int(offsets[-1]) + 3), dtype=torch.int64)

    def fits(case: Case) -> bool:
        return case.num_tokens > 0 and case.params.get("out_spare") is not None and applies(case)

    return overlaps("out", parameter, rows, fits, ("query_start_loc",))


rank_slot_mapping = Operation(
    name=NAME,
    section="10",
    summary="the cache slots of a batch on every rank of context parallelism",
    inputs=Inputs(
        params=_Params,
        problem=_problem,
        unreal=lambda case: (
            "a block table of an engine has a column" if case.params.get("columns") == 0 else ""
        ),
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults={
            "no ranks": wrong_value("cp_size", 0),
            "ranks of another type": wrong_type("cp_size"),
            "rank beyond the ranks": Fault("cp_rank", lambda _, size: size, reads=("cp_size",)),
            "negative rank": wrong_value("cp_rank", -1),
            "rank of another type": wrong_type("cp_rank"),
            "interleave of 0": wrong_value("cp_interleave", 0),
            "interleave that does not divide the block size": Fault(
                "cp_interleave", lambda _, size: size + 1, reads=("block_size",)
            ),
            "block size that the interleave does not divide": Fault(
                ("block_size", "cp_interleave"),
                lambda size, _: (2 * size + 1, 2),
                "cp_interleave",
            ),
            **_over("query_start_loc"),
            **_over("num_computed_tokens"),
            **_over("block_table", lambda case: case.params.get("columns") != 0),
            **_over("start_idx", lambda case: case.params.get("start_idx") is not None),
        },
    ),
    call=_OnEveryRank(prepare=_prepare, use=_build, outputs=_outputs),
    contract=Contract(
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
        may_alias=frozenset({"[].result", "[].out"}),
        may_sync=lambda case: (
            case.params.get("out_spare") is None and case.params.get("num_padded") is None
        ),
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (rank_slot_mapping,)
