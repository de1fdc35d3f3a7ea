"""Operations of SPEC.md section 15 that hand out slots: `alloc_extend`, `alloc_decode`.

Bug classes: the last, partly filled page is not continued, or its last token is written
over; a page that two requests get; a page too few or too many where a prefix ends on a
page edge; page ids multiplied in 32 bits (K15).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof import reference
from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.pages.allocated import (
    FIELD,
    demand,
    slot_outputs,
    slot_violations,
    slots_consumed,
    written_twice,
)
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few, Params

EXTEND, DECODE = "alloc_extend", "alloc_decode"


class _Params(Params):
    spare: Few
    narrow: bool = False


def _case(name: str, batch: Batch, spare: int = 0, *, narrow: bool = False) -> Case:
    """Return a case with `spare` free pages more than needed; `narrow` makes them int32."""
    return Case(name, batch, {"spare": spare} | ({"narrow": True} if narrow else {}))


def _problem(case: Case) -> str:
    return written_twice(batch_of(case), decode=case.operation == DECODE)


def _unreal(case: Case) -> str:
    return "free pages of an engine are int64" if case.params.get("narrow") else ""


@st.composite
def _cases(draw: st.DrawFn, name: str) -> Case:
    batch = draw(batches())
    return _case(name, batch, draw(st.sampled_from((0, 2))), narrow=draw(st.booleans()))


def _boundaries(name: str) -> Iterator[tuple[str, Case]]:
    for cached in (0, 1, 3, 4, 5, 7, 8):
        for new in (1, 3, 4, 5, 9):
            batch = make_batch([new, 2], [cached, 5], 4, order="descending")
            yield f"{new} tokens behind {cached} in pages of 4", _case(name, batch, 1)
    yield "pages of one token", _case(name, make_batch([3, 1], [0, 4], 1))
    yield "no requests", _case(name, make_batch([], [], 4))
    yield "no requests, free pages", _case(name, make_batch([], [], 4), 3)
    idle = make_batch([0, 2, 0, 1, 0], [3, 1, 4, 4, 0], 4, order="shuffled")
    yield "requests without new tokens", _case(name, idle, 1)
    yield "no new page", _case(name, make_batch([1, 2], [1, 5], 4))
    yield "shared prefix pages", _case(name, make_batch([2, 2], [8, 9], 4, shared=True))
    for block_size in (1, 16, 256):
        batch = make_batch([3, 2], [block_size - 1, 0], block_size, first=HIGHEST_BLOCK - 5)
        yield f"highest page ids, pages of {block_size} (K15)", _case(name, batch)
        yield f"highest int32 page ids, pages of {block_size}", _case(name, batch, narrow=True)
    for tokens in (1023, 1024, 1025, 3000):
        batch = make_batch([tokens, 3], [2, 3], 4)
        yield f"{tokens} new tokens of a request (K19)", _case(name, batch, 1)
    for rows in (256, 257, 600) if name == DECODE else (128, 129, 260):
        lengths = [1 + row % 3 for row in range(rows)]
        batch = make_batch(lengths, [row % 7 for row in range(rows)], 4, order="shuffled")
        yield f"{rows} requests (K19)", _case(name, batch, 2)
    strided = make_batch([4, 3], [1, 5], 4, strided=True, dtype="int64")
    yield "strided int64", _case(name, strided, 2)
    yield "strided int64, narrow pages", _case(name, strided, narrow=True)


def _steps(name: str, batch: Batch) -> Iterator[Case]:
    case = _case(name, batch, batch.num_tokens % 3)
    if not _problem(case):
        yield case


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, decode = batch_of(case), case.operation == DECODE
    arrays, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    step = (2 if batch.strided else 1,)
    # A decode hands out the slot of the last token of each request that has a query.
    has_query = np.diff(arrays.query_start_loc) > 0
    rows = np.flatnonzero(has_query) if decode else np.arange(arrays.num_reqs)
    prefix_lens = arrays.seq_lens[rows] - 1 if decode else arrays.num_computed_tokens[rows]
    need = demand(arrays, prefix_lens, rows, case.params["spare"])
    free = need.free_pages.astype(np.int32 if case.params.get("narrow") else np.int64)
    pieces = [
        Piece("seq_lens", arrays.seq_lens[rows], False, step),
        Piece("last_loc", need.last_loc, False, step),
        Piece("free_pages", free, False, step),
        Piece(FIELD, np.full(len(need.requests), stale, dtype=np.int64), False, step),
    ]
    if not decode:
        pieces.insert(0, Piece("prefix_lens", prefix_lens, False, step))
    arena = Arena(pieces, stale, device)
    args: dict[str, Any] = {piece.name: arena.tensors[piece.name] for piece in pieces}
    args["page_size"] = batch.block_size
    return Call(args, arena=arena, written=frozenset({FIELD}), facts=need)


def _outputs(call: Call, result: Any) -> Outputs:
    return slot_outputs(call) | {"result": result}


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    """Name a mistake in the slots of a prefix's last page."""
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        return ""
    wrong, right = got[got != expected], expected[got != expected]
    if bool((wrong == right - 1).all()):
        return "a token written over the one before it"
    pages = wrong // call["page_size"] != right // call["page_size"]
    return "the prefix's last page not continued" if bool(pages.all()) else ""


def _has_new(case: Case) -> bool:
    """True if some request gets a slot."""
    return bool(len(_prepare(case, 0, "cpu").facts.requests))


def _has_new_page(case: Case) -> bool:
    return bool(_prepare(case, 0, "cpu").facts.new_pages)


def _values(parameter: str, change: Any, applies: Any = _has_new) -> Fault:
    """Return a fault of a tensor's values, which a check can detect on the CPU only."""
    return Fault(parameter, change, applies=applies, cpu_only=True)


def _faults() -> dict[str, Fault]:
    return {
        "short buffer": _values(FIELD, lambda out: out[:-1]),
        "last slots at other places": Fault(
            "last_loc",
            lambda last: last + 1,
            applies=lambda case: _has_new(case) and batch_of(case).block_size > 1,
            cpu_only=True,
        ),
        "negative last slots": _values("last_loc", lambda last: -2 - last.abs()),
        "too few free pages": Fault(
            "free_pages",
            lambda pages: pages[:0],
            applies=_has_new_page,
            cpu_only=True,
            is_real=True,  # a full pool: an engine then preempts a request
        ),
        "free pages listed twice": _values(
            "free_pages", lambda pages: torch.cat([pages, pages[:1]]), _has_new_page
        ),
    }


def _operation(function: Any, summary: str, faults: dict[str, Fault]) -> Operation:
    name = function.__name__
    return Operation(
        name=name,
        section="15",
        summary=summary,
        inputs=Inputs(
            params=_Params,
            problem=_problem,
            unreal=_unreal,
            cases=lambda: _cases(name),
            boundaries=lambda: _boundaries(name),
            from_batch=lambda batch: _steps(name, batch),
            faults=faults_of(function, _prepare) | faults,
        ),
        call=FunctionCall(prepare=_prepare, outputs=_outputs),
        contract=Contract(
            invariants=slot_violations,
            consume=slots_consumed,
            diagnose=_diagnose,
        ),
        built_in=BuiltIn(kernels=True),
    )


alloc_extend = _operation(
    reference.alloc_extend,
    "slots for the tokens behind cached prefixes",
    _faults()
    | {
        "one last slot missing": Fault("last_loc", lambda last: last[:-1], applies=_has_new),
        "sequence shorter than its prefix": Fault(
            "prefix_lens",
            lambda lengths: lengths + 2**20,
            "seq_lens",
            applies=_has_new,
            cpu_only=True,
        ),
    },
)
alloc_decode = _operation(
    reference.alloc_decode, "a slot for the next token of each sequence", _faults()
)

OPERATIONS = (alloc_extend, alloc_decode)
