"""Batches whose queries get further tokens.

The batch of a case is the extended one, so its numbers give each token's block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from attnproof.harness.cases.batches.strategies import batches, make_batch
from attnproof.harness.cases.batches.tensors import batch_arrays, lay_out, table_piece
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.call import Quantity
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.operations.shared.metadata import BatchFacts, batch_of


@dataclass(frozen=True, kw_only=True)
class ExtendedFacts(BatchFacts):
    """Facts of an operation on an extended batch."""

    params: dict[str, Any]


def extended_problem(case: Case) -> str:
    """Return why no smaller batch can be made of the case's, "" if one can."""
    batch, more = batch_of(case), case.params["more"]
    if batch.padded_requests:
        return "batch.padded_requests: each row is extended"
    if more and batch.dcp_local_seq_lens is not None:
        return "batch.dcp_local_seq_lens: rank shares of longer sequences are not known"
    return ""


def extended_unreal(case: Case) -> str:
    """Return why no engine extends the batch, "" if one may."""
    batch = batch_of(case)
    more = min([case.params["more"], *batch.query_lens])
    if batch.padded_tokens:
        return "a drafter's batch has no graph padding"
    if more in batch.query_lens:
        return "an engine gives each request of a step a token"
    if case.params.get("columns") is not None:
        return "an engine gives a draft token a block"
    return "positions of an engine are int64" if case.params.get("narrow") else ""


def whole_rows(batch: Batch) -> Batch:
    """Return the batch without padded rows and rank shares, which no extended batch has."""
    shares = batch.encoder_seq_lens
    return msgspec.structs.replace(
        batch,
        padded_requests=0,
        encoder_seq_lens=shares and shares[: batch.num_requests],
        dcp_local_seq_lens=None,
    )


def engine_rows(batch: Batch) -> Batch:
    """Return the batch of an engine without graph padding, which no drafter's batch has."""
    return msgspec.structs.replace(whole_rows(batch), padded_tokens=0)


def smaller_batch(batch: Batch, more: int) -> Batch:
    """Return the batch before it is extended; its blocks are cut to its sequences."""
    query_lens = tuple(query_len - more for query_len in batch.query_lens)
    lengths = [q + c for q, c in zip(query_lens, batch.computed_lens, strict=True)]
    counts = [-(-length // batch.block_size) for length in lengths]
    tokens = sum(query_lens) + batch.padded_tokens
    indices = batch.logits_indices
    return msgspec.structs.replace(
        batch,
        query_lens=query_lens,
        blocks=tuple(ids[:n] for ids, n in zip(batch.blocks, counts, strict=True)),
        logits_indices=indices and tuple(index for index in indices if index < tokens),
    )


@st.composite
def extended_batches(draw: st.DrawFn, *, extras: bool) -> tuple[Batch, int]:
    """Draw a batch, and how many tokens at the end of each row are further ones."""
    batch = whole_rows(draw(batches(extras=extras)))
    return batch, draw(st.integers(0, min([3, *batch.query_lens])))


def extended_shapes() -> Iterator[tuple[str, Batch, int]]:
    """Yield names, extended batches and the number of further tokens of each row."""
    yield "SPEC example", make_batch([4, 3], [4, 0], 4), 2
    mixed = make_batch([3, 7, 2, 5], [7, 0, 3, 9], 4, spare_columns=1, order="descending")
    yield "one further token", mixed, 1
    yield "two further tokens", mixed, 2
    yield "no further token", mixed, 0
    yield "rows without a query before", make_batch([2, 5, 2], [3, 0, 0], 4), 2
    yield "no requests", make_batch([], [], 4, padded_tokens=2), 3
    fields: dict[str, Any] = {"padded_tokens": 3, "spare_slots": 2}
    yield "graph padding tokens", make_batch([3, 2], [5, 0], 4, **fields), 1
    fields = {
        "spare_slots": 2,
        "subclassed": True,
        "encoder_seq_lens": (3, 4),
        "logits_indices": (0, 2),
    }
    yield "all optional fields (K2)", make_batch([3, 2], [5, 0], 4, **fields), 1
    strided = make_batch([3, 4], [2, 1], 4, strided=True, dtype="int64", subclassed=True)
    yield "strided int64", strided, 2
    for dtype in ("int64 offsets", "int64 lengths", "int64 computed"):
        yield f"{dtype} only", make_batch([3, 4], [2, 1], 4, dtype=dtype), 1
    slack = make_batch([3, 2], [5, 1], 4, query_slack=2, seq_slack=9)
    yield "bounds above the longest", slack, 1
    yield (
        "many rows",
        make_batch(
            [3 + row % 3 for row in range(300)],
            [9 + row % 5 for row in range(300)],
            4,
            subclassed=True,
        ),
        2,
    )


def lay_out_smaller(case: Case, pattern: int, device: str, more: list[Piece]) -> tuple[Any, Arena]:
    """Return the smaller batch with the block table of the extended one."""
    batch, stale = batch_of(case), STALE_PATTERNS[pattern]
    table = batch_arrays(batch, pattern).block_table_with(stale)
    piece = table_piece("extended_table", table, 2 if batch.strided else 1)
    parent = smaller_batch(batch, case.params["more"])
    metadata, arena = lay_out(parent, pattern, device, [piece, *more])
    return replace(metadata, block_table_tensor=arena.tensors["extended_table"]), arena


def extended_facts(case: Case, metadata: Any) -> ExtendedFacts:
    """Return the facts of a case, of which `metadata` is the smaller batch."""
    batch = batch_of(case)
    return ExtendedFacts(
        batch=batch,
        metadata=metadata,
        params=case.params,
        tokens=batch.num_tokens,
        result=Quantity.SLOTS,
    )
