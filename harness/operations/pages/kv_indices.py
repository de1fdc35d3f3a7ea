"""Operation of SPEC.md section 15: the slots of the positions that each request sees.

Bug classes: a start offset that is lost or counted twice, page ids multiplied in 32 bits
(K15), a write behind the last request's entries, a tile that is left out (K19).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.page_table import of_slots, page_table_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.faults import faults_of
from attnproof.harness.operations.derived.pool import (
    MOST_SLOT,
    needs_wide_pool,
    page_pool,
    pool_problem,
    token_pool,
)
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Few, Params
from attnproof.reference import create_flashinfer_kv_indices as reference

NAME = "create_flashinfer_kv_indices"
_VECTORS = ("req_pool_indices", "page_kernel_lens", "kv_indptr", "kv_start_idx")


class _Params(Params):
    paged: bool
    start: Count | None
    spare: Few


def _case(batch: Batch, *, paged: bool = False, start: int | None = None, spare: int = 0) -> Case:
    """Return a case.

    With `paged` the table holds pages instead of slots. Each request is seen from position
    `start` on, at most from its end; `spare` entries follow the last request's.
    """
    return Case(NAME, batch, {"paged": paged, "start": start, "spare": spare})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(
        draw(batches()),
        paged=draw(st.booleans()),
        start=draw(st.sampled_from((None, 0, 1, 4, 16, 37))),
        spare=draw(st.sampled_from((0, 3))),
    )


def _boundaries() -> Iterator[tuple[str, Case]]:
    example = make_batch([1, 2, 0], [4, 0, 3], 4, order="descending")
    for paged in (False, True):
        entries = "pages" if paged else "slots"
        yield f"table of {entries}", _case(example, paged=paged, spare=2)
        for start in (0, 3, 4, 5, 100):
            name = f"table of {entries}, from position {start}"
            yield name, _case(example, paged=paged, start=start, spare=1)
        yield f"no requests, table of {entries}", _case(make_batch([], [], 4), paged=paged, spare=3)
        highest = make_batch([3, 2], [15, 0], 16, first=HIGHEST_BLOCK - 4)
        yield f"highest page ids, table of {entries} (K15)", _case(highest, paged=paged, start=2)
        for tokens in (1023, 1024, 1025, 3000):
            batch = make_batch([1, 1], [tokens - 1, 2], 16)
            yield f"{tokens} positions, table of {entries} (K19)", _case(batch, paged=paged)
    yield "pages of one token", _case(make_batch([3, 1], [0, 4], 1), paged=True, start=1)
    yield "padded rows", _case(make_batch([1, 3], [7, 0], 4, padded_requests=2), spare=1)
    many = make_batch([1] * 700, [row % 11 for row in range(700)], 4)
    yield "more requests than programs", _case(many, paged=True, start=2)
    strided = make_batch([4, 3], [1, 5], 4, strided=True, dtype="int64")
    yield "strided int64", _case(strided, start=2, spare=3)
    yield "strided int64, table of pages", _case(strided, paged=True, start=2, spare=3)
    yield "shared prefix", _case(make_batch([2, 2], [8, 8], 4, shared=True))


def _steps(batch: Batch) -> Iterator[Case]:
    if not pool_problem(Case(NAME, batch)):
        yield _case(batch, paged=batch.num_tokens % 2 == 1, spare=batch.num_tokens % 7)


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch, params = batch_of(case), case.params
    made, stale, step = batch_arrays(batch), STALE_PATTERNS[pattern], 2 if batch.strided else 1
    pool = (page_pool if params["paged"] else token_pool)(batch, pattern)
    lengths = made.seq_lens.astype(np.int64)
    first = np.minimum(params["start"] or 0, lengths)
    indptr = np.append(0, np.cumsum(lengths - first))
    highest = max((max(blocks, default=0) for blocks in batch.blocks), default=0) | 1
    wide = (highest + 1) * batch.block_size > MOST_SLOT or batch.dtype == "int64"
    vectors = dict(zip(_VECTORS, (pool.rows, lengths - first, indptr, first), strict=True))
    if params["start"] is None:
        del vectors["kv_start_idx"]
    pieces = [
        Piece(name, values.astype(made.seq_lens.dtype), False, (step,))
        for name, values in vectors.items()
    ]
    buffer = np.full(indptr[-1] + params["spare"], stale, dtype=np.int64 if wide else np.int32)
    pieces += [
        table_piece("req_to_token", pool.table, step),
        Piece("kv_indices", buffer, False, (step,)),
    ]
    arena = Arena(pieces, stale, device)
    names = ("req_to_token", *_VECTORS, "kv_indices")
    return Call(
        {name: arena.tensors.get(name) for name in names},
        {"entry_page_size": batch.block_size if params["paged"] else 1},
        arena=arena,
        written=frozenset({"kv_indices"}),
        facts=BatchFacts(batch=batch, block_size=batch.block_size),
    )


def _outputs(call: Call, result: Any) -> Outputs:
    return {"kv_indices": call["kv_indices"], "result": result}


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each query sees its request's positions from the first one on."""
    expected, first = expected_tokens(call.facts.batch), call["kv_start_idx"]
    pages = of_slots(int64_array(call["kv_indptr"]), int64_array(outputs["kv_indices"]))
    yield from page_table_violations(
        expected,
        pages,
        ("kv_indices",) * 3,
        None if first is None else int64_array(first),
    )


def _diagnose(call: Call, place: Place, _expected: Any, got: Any) -> str:
    """Name slots that are those of the first positions, whatever the start offset is."""
    if place.field != "kv_indices" or call["kv_start_idx"] is None:
        return ""
    offsets = int64_array(call["kv_indptr"])
    given = expected_tokens(call.facts.batch)
    lens = np.diff(offsets)
    rows = np.repeat(np.arange(len(lens)), lens)
    columns, places = np.divmod(np.arange(offsets[-1]) - offsets[rows], given.block_size)
    first = given.table[rows, columns] * given.block_size + places
    same = np.array_equal(int64_array(got)[: offsets[-1]], first)
    return "the start offset lost" if same else ""


def _has_tokens(case: Case) -> bool:
    """True if some request sees a position."""
    batch, start = batch_of(case), case.params["start"] or 0
    lengths = zip(batch.query_lens, batch.computed_lens, strict=True)
    return any(q + c > start for q, c in lengths)


def _values(parameter: str, change: Any, field: str = "") -> Fault:
    """Return a fault of a tensor's values, which a check can detect on the CPU only."""
    return Fault(parameter, change, field, applies=_has_tokens, cpu_only=True)


create_flashinfer_kv_indices = Operation(
    name=NAME,
    section="15",
    summary="the slots of the positions that each request sees, as CSR",
    inputs=Inputs(
        params=_Params,
        whole_contexts=True,
        problem=pool_problem,
        unreal=lambda case: "" if case.params["paged"] else needs_wide_pool(case),
        cases=_cases,
        boundaries=_boundaries,
        from_batch=_steps,
        faults=faults_of(reference, _prepare)
        | {
            "rows behind the pool": _values("req_pool_indices", lambda rows: rows + 2**20),
            "offsets that fall": _values("kv_indptr", lambda offsets: -offsets),
            "offsets of other lengths": _values("kv_indptr", lambda offsets: 2 * offsets),
            "positions behind the row": Fault(
                "kv_start_idx",
                lambda _, lengths: lengths + 2**20,
                "page_kernel_lens",
                applies=_has_tokens,
                cpu_only=True,
                given=("page_kernel_lens",),
            ),
            "short buffer": _values("kv_indices", lambda indices: indices[:0]),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        relations=Relations(joined={"kv_indices": Joined.ENTRIES}, alone={"spare": 0}),
        consume=_consumed,
        diagnose=_diagnose,
        may_alias=frozenset({"kv_indices"}),
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (create_flashinfer_kv_indices,)
