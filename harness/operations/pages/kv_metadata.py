"""Operation of SPEC.md section 15: the page table of a batch as CSR.

Bug classes: a full last page of length 0, a page too many where a sequence ends on a page
edge, pages of a stale column or of another request (K18).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.page_table import PageTable, page_table_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn, Contract, Inputs, Operation
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.shared.faults import wrong_type, wrong_value
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of
from attnproof.harness.operations.shared.params import Params

NAME = "compute_flashinfer_kv_metadata"
_FIELDS = ("kv_indptr", "kv_indices", "kv_last_page_len")


class _Params(Params):
    wide_table: bool = False


def _case(batch: Batch, *, wide_table: bool = False) -> Case:
    """Return a case; `wide_table` selects an int64 block table."""
    return Case(NAME, batch, {"wide_table": True} if wide_table else {})


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    return _case(draw(batches()), wide_table=draw(st.integers(0, 5)) == 5)


def _boundaries() -> Iterator[tuple[str, Case]]:
    example = make_batch([5, 0, 8], [0, 0, 0], 4, order="descending")
    yield "example", _case(example)
    for length in (1, 3, 4, 5, 7, 8, 9):
        batch = make_batch([1, 1], [length - 1, 2], 4, spare_columns=2)
        yield f"sequence of {length} tokens in pages of 4", _case(batch)
    yield "pages of one token", _case(make_batch([3, 1], [0, 4], 1, spare_columns=1))
    yield "empty sequences at both ends", _case(make_batch([0, 4, 0], [0, 4, 0], 4))
    yield "no requests", _case(make_batch([], [], 4))
    yield "only padded rows", _case(make_batch([], [], 4, padded_requests=3))
    yield "padded rows", _case(make_batch([1, 3], [7, 0], 4, padded_requests=2, padded_tokens=2))
    highest = make_batch([3, 2], [15, 0], 16, first=HIGHEST_BLOCK - 4)
    yield "highest page ids (K15)", _case(highest)
    yield "highest page ids in an int64 table", _case(highest, wide_table=True)
    for pages in (1023, 1024, 1025):
        batch = make_batch([1, 1], [2 * pages - 1, 0], 2, order="shuffled")
        yield f"{pages} pages of a request (K19)", _case(batch)
    yield "many requests", _case(make_batch([1] * 1030, [row % 11 for row in range(1030)], 4))
    yield "strided int64", _case(make_batch([4, 3], [1, 5], 4, strided=True, dtype="int64"))
    shares = make_batch([1, 1], [4, 2], 4, spare_columns=3)
    yield "sequences that several ranks share (K34)", _case(shares)
    yield "shared prefix pages", _case(make_batch([2, 2], [8, 8], 4, shared=True))


def _prepare(case: Case, pattern: int, device: str) -> Call:
    batch = batch_of(case)
    made, stale = batch_arrays(batch, pattern), STALE_PATTERNS[pattern]
    step = 2 if batch.strided else 1
    table = made.block_table_with(stale)
    if case.params.get("wide_table"):
        table = table.astype(np.int64)
    pieces = [
        Piece("seq_lens_cpu", made.seq_lens, on_cpu=True, strides=(step,)),
        table_piece("block_table", table, step),
    ]
    arena = Arena(pieces, stale, device)
    args = {name: arena.tensors[name] for name in ("seq_lens_cpu", "block_table")}
    facts = BatchFacts(batch=batch, block_size=batch.block_size)
    return Call(args | {"page_size": batch.block_size}, arena=arena, facts=facts)


def _outputs(_call: Call, result: Any) -> Outputs:
    return dict(zip(_FIELDS, result, strict=True))


def _invariants(call: Call, outputs: Outputs) -> Iterator[Violation]:
    indptr, indices, last_page_len = (int64_array(outputs[name]) for name in _FIELDS)
    counts, page_size = np.diff(indptr), call["page_size"]
    if not len(indptr) or indptr[0] != 0 or (counts < 0).any():
        yield Violation("kv_indptr", "does not rise from 0")
        return
    if indptr[-1] != len(indices):
        yield Violation("kv_indices", "has another length than kv_indptr says")
    if (last_page_len > page_size).any() or (last_page_len < 0).any():
        yield Violation("kv_last_page_len", "is more than a page")
    if ((last_page_len > 0) != (counts > 0)).any():
        yield Violation("kv_last_page_len", "is 0 for a request with pages, or positive without")


def _consumed(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Check that each query sees its request's positions through the page table."""
    indptr, indices, last_page_len = (int64_array(outputs[name]) for name in _FIELDS)
    pages = PageTable(indptr, indices, last_page_len, call["page_size"])
    yield from page_table_violations(expected_tokens(call.facts.batch), pages, _FIELDS)


def _diagnose(call: Call, place: Place, expected: Any, got: Any) -> str:
    """Name a wrong number of pages, a wrong length of a last page, or a wrong page."""
    same = isinstance(got, torch.Tensor) and got.shape == expected.shape
    if not same or got.dtype != expected.dtype:
        return ""
    right, wrong = expected[expected != got], got[expected != got]
    if place.field == "kv_indptr":
        steps = (got.diff() - expected.diff()).unique().tolist()
        names = {(0, 1): "a page too many", (-1, 0): "a page too few"}
        more = "pages too many" if min(steps) >= 0 else ""
        return names.get(tuple(sorted({0, *steps})), more)
    if place.field == "kv_last_page_len":
        full = bool((right == call["page_size"]).all() and (wrong == 0).all())
        if full:
            return "a full last page of length 0"
        return "a last page behind the sequence's end" if bool((wrong > right).all()) else ""
    if place.field != "kv_indices" or int(wrong[0]) in STALE_PATTERNS[:1]:
        return ""
    known = expected.unique()
    return "a page of another place" if bool(torch.isin(wrong, known).all()) else ""


def _has_pages(case: Case) -> bool:
    batch = batch_of(case)
    return any(q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True))


compute_flashinfer_kv_metadata = Operation(
    name=NAME,
    section="15",
    summary="the page table of a batch as CSR, for FlashInfer",
    inputs=Inputs(
        params=_Params,
        unreal=lambda case: (
            "block ids of an engine are int32" if case.params.get("wide_table") else ""
        ),
        cases=_cases,
        boundaries=_boundaries,
        from_batch=lambda batch: [_case(batch)],
        faults={
            "page size of 0": wrong_value("page_size", 0),
            "page size of another type": wrong_type("page_size"),
            "lengths of another type": wrong_type("seq_lens_cpu"),
            "float lengths": Fault("seq_lens_cpu", torch.Tensor.float),
            "2-D lengths": Fault("seq_lens_cpu", lambda lengths: lengths[None]),
            "negative lengths": Fault(
                "seq_lens_cpu", lambda lengths: -1 - lengths, applies=_has_pages
            ),
            "flat block table": Fault("block_table", torch.Tensor.flatten),
            "one row of pages missing": Fault(
                "block_table", lambda table: table[:-1], applies=_has_pages
            ),
            "sequence longer than its row": Fault(
                "block_table", lambda table: table[:, :0], applies=_has_pages
            ),
            "negative pages": Fault(
                "block_table",
                lambda table: -1 - table.clamp(min=0),
                applies=_has_pages,
                cpu_only=True,
            ),
        },
    ),
    call=FunctionCall(prepare=_prepare, outputs=_outputs),
    contract=Contract(
        relations=Relations(
            joined={
                "kv_indptr": Joined.OFFSETS,
                "kv_indices": Joined.ENTRIES,
                "kv_last_page_len": Joined.ENTRIES,
            },
            blocks=frozenset({"kv_indices"}),
        ),
        invariants=_invariants,
        consume=_consumed,
        diagnose=_diagnose,
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_flashinfer_kv_metadata,)
