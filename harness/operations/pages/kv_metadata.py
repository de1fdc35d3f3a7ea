"""Operation of SPEC.md section 15: the page table of a batch as CSR.

Bug classes: a full last page of length 0, a page too many where a sequence ends on a page
edge, pages of a stale column or of another request (K18).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.cases.memory.arena import STALE_PATTERNS
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.page_table import PageTable, page_table_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Case
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.derive import Example, derive_built_in
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.reference import compute_flashinfer_kv_metadata as reference

_FIELDS = ("kv_indptr", "kv_indices", "kv_last_page_len")


def _examples() -> Iterator[Example]:
    for length in (1, 3, 4, 5, 7, 8, 9):
        batch = make_batch([1, 1], [length - 1, 2], 4, spare_columns=2)
        yield f"sequence of {length} tokens in pages of 4", batch, {}
    yield "pages of one token", make_batch([3, 1], [0, 4], 1, spare_columns=1), {}
    yield "only padded rows", make_batch([], [], 4, padded_requests=3), {}
    highest = make_batch([3, 2], [15, 0], 16, first=HIGHEST_BLOCK - 4, dtype="int64 table")
    yield "highest page ids in an int64 table", highest, {}
    for pages in (1023, 1024, 1025):
        batch = make_batch([1, 1], [2 * pages - 1, 0], 2, order="shuffled")
        yield f"{pages} pages of a request (K19)", batch, {}
    many = make_batch([1] * 1030, [row % 11 for row in range(1030)], 4)
    yield "many requests", many, {}


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


compute_flashinfer_kv_metadata = derive_built_in(
    reference,
    section="15",
    summary="the page table of a batch as CSR, for FlashInfer",
    examples=_examples,
    faults={
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
    invariants=_invariants,
    consume=_consumed,
    diagnose=_diagnose,
    relations=Relations(
        joined={
            "kv_indptr": Joined.OFFSETS,
            "kv_indices": Joined.ENTRIES,
            "kv_last_page_len": Joined.ENTRIES,
        },
        blocks=frozenset({"kv_indices"}),
    ),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (compute_flashinfer_kv_metadata,)
