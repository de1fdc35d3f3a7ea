"""Operation of SPEC.md section 18: blocks of a cache in chunks of host memory, byte by byte.

Bug classes: a load that starts inside a chunk takes its first blocks (#28951), a run that needs a
chunk more than its blocks fill (#48959), the padding of a page that is copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from hypothesis import strategies as st
from msgspec import Meta

from attnproof.harness.cases.batches.request_rows import request_rows
from attnproof.harness.consumer.batch import int64_array
from attnproof.harness.model.call import Call, Outputs
from attnproof.harness.model.case import Batch
from attnproof.harness.model.fault import Fault
from attnproof.harness.model.operation import BuiltIn
from attnproof.harness.model.place import Place
from attnproof.harness.model.violation import Violation
from attnproof.harness.operations.derived.arguments import Values
from attnproof.harness.operations.derived.derive import Example, Step, derive_built_in, one_of
from attnproof.harness.operations.derived.params import Parameter
from attnproof.harness.operations.shared.params import Few, Some
from attnproof.reference import copy_offloaded_blocks as reference

_Number = Annotated[int, Meta(ge=0, le=256)]
_Groups = Annotated[
    list[Annotated[list[_Number], Meta(min_length=2, max_length=2)]], Meta(max_length=16)
]
"""Blocks of each group, and the index of the first one in the request."""
_GROUPS: tuple[list[list[int]], ...] = (
    [[5, 0], [3, 6]],
    [[3, 1]],
    [[5, 3], [4, 2]],
    [[0, 3], [2, 1]],
    [[1, 7], [0, 0], [1, 4]],
    [],
)
_DRAWN = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)).map(list), max_size=3)


def _examples() -> Iterator[Example]:
    for parts in (1, 2, 4):
        for to_host in (True, False):
            side = "store" if to_host else "load"
            choices = {"parts": parts, "to_host": to_host}
            inside = [[4, 1], [4, parts - 1]]
            yield f"{side} inside a chunk of {parts} (#28951)", None, choices | {"groups": inside}
            over = [[parts + 1, 0], [parts, 1]]
            name = f"{side} a block over its chunk of {parts} (#48959)"
            yield name, None, choices | {"groups": over}


def _steps(batch: Batch) -> Iterator[Step]:
    """Yield the first requests' new blocks as groups."""
    size = batch.block_size
    rows = zip(batch.query_lens, batch.computed_lens, strict=True)
    ends = [(c // size, -(-(q + c) // size)) for q, c in rows]
    yield batch, {"groups": [[min(first + 8, end) - first, first % 16] for first, end in ends[:4]]}


def _blocks(values: Values) -> int:
    return sum(size for size, _ in values.params["groups"])


def _chunks(values: Values) -> int:
    parts = values.params["parts"]
    return sum(-(-(n + i % parts) // parts) for n, i in values.params["groups"] if n)


def _ids(count: int, values: Values) -> list[int]:
    """Return distinct ids in the order of the case, of twice as many and three."""
    ids: list[int] = request_rows(count, 2 * count + 3, values.params["id_order"]).tolist()
    return ids


def _shape(values: Values, *, host: bool) -> tuple[int, int]:
    """Return rows and bytes of a row of one side."""
    page = values.params["page"]
    if host:
        return 2 * _chunks(values) + 3, page * values.params["parts"]
    return 2 * _blocks(values) + 3, page


def _source_shape(values: Values) -> tuple[int, int]:
    return _shape(values, host=not values.params["to_host"])


def _target_shape(values: Values) -> tuple[int, int]:
    return _shape(values, host=values.params["to_host"])


def _source(values: Values) -> np.ndarray:
    """Return random bytes, so that no two blocks of several bytes are equal."""
    return np.random.default_rng(1).integers(-128, 128, _source_shape(values), np.int8)


def _places(call: Call) -> Iterator[tuple[int, slice, int, slice]]:
    """Yield row and bytes in the source, and row and bytes in the target, of each block."""
    parts, blocks = call["blocks_per_chunk"], iter(call["block_ids"])
    chunks, size = iter(call["chunk_ids"]), call["page_bytes"]
    width = call["source" if call["to_host"] else "target"].shape[1]
    for count, index in zip(call["group_sizes"], call["block_indices"], strict=True):
        chunk = -1
        for position in range(index, index + count):
            if position == index or position % parts == 0:
                chunk = next(chunks)
            at = position % parts * width
            ours = (next(blocks), slice(0, size))
            theirs = (chunk, slice(at, at + size))
            yield (*ours, *theirs) if call["to_host"] else (*theirs, *ours)


def _violations(call: Call, outputs: Outputs) -> Iterator[Violation]:
    """Follow each block by its position in the request; every other byte has to stay."""
    source, got = int64_array(call["source"]), int64_array(outputs["target"])
    free = np.ones(got.shape, dtype=bool)
    for row, taken, into, written in _places(call):
        free[into, written] = False
        if (got[into, written] != source[row, taken]).any():
            yield Violation("target", "a destination does not hold its source")
            return
    if len(np.unique(got[free])) > 1:
        yield Violation("target", "a block changed that is no destination")


def _diagnose(call: Call, _place: Place, expected: Any, got: Any) -> str:
    """Name what stands in the place of the first wrong block."""
    right, seen, source = (t.cpu().numpy() for t in (expected, got, call["source"]))
    places = [(into, written) for _, _, into, written in _places(call)]
    wrong = [place for place in places if (right[place] != seen[place]).any()]
    if not wrong:
        return "a block changed that is no destination"
    size, width = call["page_bytes"], min(right.shape[1], source.shape[1])
    pieces = [row[at : at + size] for row in source for at in range(0, len(row), width)]
    if all(any((seen[place] == piece).all() for piece in pieces) for place in wrong):
        return "another block's content"
    stale = {*np.unique(seen[right == seen])} if size > 1 else set()
    unwritten = all(len(np.unique(seen[place])) == 1 for place in wrong) and bool(stale)
    return "block not copied" if unwritten else "part of a block copied"


copy_offloaded_blocks = derive_built_in(
    reference,
    section="18",
    summary="blocks of a cache copied to chunks in host memory, or back",
    values={
        "S": lambda values: _source_shape(values)[0],
        "P": lambda values: _source_shape(values)[1],
        "D": lambda values: _target_shape(values)[0],
        "Q": lambda values: _target_shape(values)[1],
        "source": _source,
        "block_ids": lambda values: _ids(_blocks(values), values),
        "chunk_ids": lambda values: _ids(_chunks(values), values),
        "group_sizes": lambda values: [size for size, _ in values.params["groups"]],
        "block_indices": lambda values: [index for _, index in values.params["groups"]],
        "blocks_per_chunk": lambda values: values.params["parts"],
        "page_bytes": lambda values: max(1, values.params["page"] - values.params["unused"]),
    },
    parameters={
        "groups": Parameter(_Groups, _GROUPS, _DRAWN),
        "id_order": one_of(Few, 3, *(0, 1, 2, 4, 5, 6, 7), means="Order of `request_rows`"),
        "parts": one_of(Some, 4, 1, 2, 3, means="Blocks of a chunk"),
        "page": one_of(Some, 8, 1, 5, 64, means="Bytes of a block"),
        "unused": one_of(Few, 0, 1, 3, means="Bytes of padding in a block"),
    },
    examples=_examples,
    steps=_steps,
    faults={
        "a chunk too few": Fault(
            "chunk_ids", lambda ids: ids[:-1], applies=lambda case: _has_blocks(case.params)
        ),
        "a block beyond the cache": Fault(
            "block_ids",
            lambda ids: [*ids[:-1], 2**20],
            applies=lambda case: _has_blocks(case.params),
        ),
        "a group without an index": Fault(
            "block_indices", lambda _: [], applies=lambda case: bool(case.params["groups"])
        ),
    },
    invariants=_violations,
    diagnose=_diagnose,
    built_in=BuiltIn(shared="a copy engine moves the bytes: the lists are those of one request"),
)


def _has_blocks(params: dict[str, Any]) -> bool:
    return any(size for size, _ in params["groups"])


OPERATIONS = (copy_offloaded_blocks,)
