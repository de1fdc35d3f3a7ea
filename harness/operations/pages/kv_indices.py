"""Operation of SPEC.md section 15: the slots of the positions that each request sees.

Bug classes: a start offset that is lost or counted twice, page ids multiplied in 32 bits
(K15), a write behind the last request's entries, a tile that is left out (K19).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attnproof.harness.cases.batches.strategies import HIGHEST_BLOCK, make_batch
from attnproof.harness.consumer.batch import expected_tokens, int64_array
from attnproof.harness.consumer.page_table import of_slots, page_table_violations
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch, Case, Count
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.relations import Joined, Relations
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, derive_built_in, one_of
from attnproof.harness.operations.derived.pool import (
    MOST_SLOT,
    needs_wide_pool,
    page_pool,
)
from attnproof.harness.operations.shared.metadata import batch_of
from attnproof.harness.operations.shared.params import Few
from attnproof.reference import create_flashinfer_kv_indices as reference


def _examples() -> Iterator[Example]:
    example = make_batch([1, 2, 0], [4, 0, 3], 4, order="descending")
    for paged in (False, True):
        entries, params = "pages" if paged else "slots", {"paged": paged}
        for start in (3, 4, 5, 100):
            name = f"table of {entries}, from position {start}"
            yield name, example, params | {"start": start, "spare": 1}
        yield f"no requests, table of {entries}", make_batch([], [], 4), params | {"spare": 3}
        highest = make_batch([3, 2], [15, 0], 16, first=HIGHEST_BLOCK - 4)
        name = f"highest page ids, table of {entries} (K15)"
        yield name, highest, params | {"start": 2}
        for tokens in (1023, 1024, 1025, 3000):
            batch = make_batch([1, 1], [tokens - 1, 2], 16)
            yield f"{tokens} positions, table of {entries} (K19)", batch, params
    unit_pages = make_batch([3, 1], [0, 4], 1)
    yield "pages of one token", unit_pages, {"paged": True, "start": 1}
    many = make_batch([1] * 700, [row % 11 for row in range(700)], 4)
    yield "more requests than programs", many, {"paged": True, "start": 2}


def _steps(batch: Batch) -> Iterator[tuple[Batch, dict[str, Any]]]:
    yield batch, {"paged": batch.num_tokens % 2 == 1, "spare": batch.num_tokens % 7}


def _first(values: Values) -> np.ndarray:
    """Return the first position that each request sees, at most its end."""
    start = values.params["start"] if values.params["with_kv_start_idx"] else 0
    first: np.ndarray = np.minimum(values.batch.seq_lens, start)
    return first


def _table(values: Values) -> np.ndarray:
    paged = values.params["paged"]
    return (page_pool(values.batch.batch, values.pattern) if paged else values.pool).table


def _offsets(values: Values) -> np.ndarray:
    sums = np.append(0, np.cumsum(values["page_kernel_lens"]))
    return sums.astype(values.batch.seq_lens.dtype)


def _buffer(values: Values) -> np.ndarray:
    """Return a buffer of int64 if a slot needs it."""
    batch = values.batch.batch
    highest = max((max(blocks, default=0) for blocks in batch.blocks), default=0) | 1
    wide = (highest + 1) * batch.block_size > MOST_SLOT or batch.dtype == "int64"
    size = values["kv_indptr"][-1] + values.params["spare"]
    return np.full(size, values.stale, np.int64 if wide else np.int32)


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
    tokens = expected_tokens(call.facts.batch)
    lens = np.diff(offsets)
    rows = np.repeat(np.arange(len(lens)), lens)
    columns, places = np.divmod(np.arange(offsets[-1]) - offsets[rows], tokens.block_size)
    first = tokens.table[rows, columns] * tokens.block_size + places
    same = np.array_equal(int64_array(got)[: offsets[-1]], first)
    return "the start offset lost" if same else ""


def _has_tokens(case: Case) -> bool:
    """True if some request sees a position."""
    batch, params = batch_of(case), case.params
    start = params["start"] if params["with_kv_start_idx"] else 0
    lengths = zip(batch.query_lens, batch.computed_lens, strict=True)
    return any(q + c > start for q, c in lengths)


def _values(parameter: str, change: Any) -> Fault:
    """Return a fault of a tensor's values, which a check can detect on the CPU only."""
    return Fault(parameter, change, applies=_has_tokens, cpu_only=True)


create_flashinfer_kv_indices = derive_built_in(
    reference,
    section="15",
    summary="the slots of the positions that each request sees, as CSR",
    values={
        "req_to_token": _table,
        "page_kernel_lens": lambda values: values.batch.seq_lens - _first(values),
        "kv_indptr": _offsets,
        "kv_start_idx": _first,
        "kv_indices": _buffer,
        "N": lambda values: len(values["kv_indices"]),
        "entry_page_size": lambda values: (
            values.batch.batch.block_size if values.params["paged"] else 1
        ),
    },
    parameters={
        "paged": one_of(bool, False, True),
        "start": one_of(Count, 0, 1, 4, 16, 37),
        "spare": one_of(Few, 0, 3),
    },
    examples=_examples,
    steps=_steps,
    unreal=lambda case: "" if case.params["paged"] else needs_wide_pool(case),
    faults={
        "rows behind the pool": _values("req_pool_indices", lambda rows: rows + 2**20),
        "offsets that fall": _values("kv_indptr", lambda offsets: -offsets),
        "offsets of other lengths": _values("kv_indptr", lambda offsets: 2 * offsets),
        "positions behind the row": Fault(
            "kv_start_idx",
            lambda _, lengths: lengths + 2**20,
            "page_kernel_lens",
            applies=_has_tokens,
            cpu_only=True,
            reads=("page_kernel_lens",),
        ),
        "short buffer": _values("kv_indices", lambda indices: indices[:0]),
    },
    consume=_consumed,
    diagnose=_diagnose,
    relations=Relations(joined={"kv_indices": Joined.ENTRIES}, alone={"spare": 0}),
    built_in=BuiltIn(kernels=True),
)

OPERATIONS = (create_flashinfer_kv_indices,)
