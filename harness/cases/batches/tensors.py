"""Convert a `Batch` to the tensors of a `CommonAttentionMetadata`.

Stale places (SPEC.md rule 0.4) are poisoned with a pattern that the caller chooses:
block-table columns beyond a sequence, spare slots, spare logits indices. The result of a
correct operation does not depend on the pattern.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from attnproof.harness.cases.batches import later, subclass
from attnproof.harness.cases.memory.arena import STALE_PATTERNS, Arena, Piece
from attnproof.harness.model.case import Batch
from attnproof.reference.interface import PAD_SLOT_ID
from attnproof.reference.shared import CommonAttentionMetadata, CommonAttentionMetadataV32

_GAP = 3
"""Words between the rows of a table in memory."""
_MIRRORED = ("query_start_loc", "seq_lens")


class BatchArrays:
    """Arrays of a batch, made once and laid out once per poison pattern."""

    def __init__(self, batch: Batch, *, other_ids: bool = False) -> None:
        padding = [0] * batch.padded_requests
        query_lens = np.array([*batch.query_lens, *padding], dtype=np.int64)
        computed = np.array([*batch.computed_lens, *padding], dtype=np.int64)
        offsets = np.zeros(len(query_lens) + 1, dtype=np.int64)
        np.cumsum(query_lens, out=offsets[1:])
        self.batch = batch
        self.query_start_loc = offsets.astype(_dtype(batch, "offsets"))
        self.seq_lens = (computed + query_lens).astype(_dtype(batch, "lengths"))
        self.num_computed_tokens = computed.astype(_dtype(batch, "computed"))
        self.num_reqs = len(query_lens)
        self.num_actual_tokens = int(offsets[-1]) + batch.padded_tokens
        self.max_query_len = int(query_lens.max(initial=0)) + batch.query_slack
        self.max_seq_len = int(self.seq_lens.max(initial=0)) + batch.seq_slack
        self.block_table, self.stale_blocks = _block_table(batch, self.num_reqs)
        if other_ids:
            self.block_table ^= 1
        self.slot_mapping = _slots(self)

    def block_table_with(self, stale: int) -> np.ndarray:
        """Return the (R, W) int32 block table with `stale` in every stale place."""
        table = self.block_table.copy()
        table[self.stale_blocks] = stale
        return table

    def pieces(self, stale: int) -> list[Piece]:
        """Return every tensor of the metadata as a piece of an arena."""
        batch = self.batch
        step = 2 if batch.strided else 1
        # An engine fills the tail, and the other pattern shows who reads it.
        filled = stale == STALE_PATTERNS[0] and batch.num_tokens % 4 == 3
        tail = np.full(batch.spare_slots, PAD_SLOT_ID if filled else stale)
        slots = np.concatenate([self.slot_mapping, tail])
        arrays = {
            "query_start_loc": self.query_start_loc,
            "seq_lens": self.seq_lens,
            "num_computed_tokens": self.num_computed_tokens,
        }
        pieces = [
            Piece(f"{name}_cpu", values, on_cpu=True, strides=(step,))
            for name, values in arrays.items()
        ]
        pieces += [Piece(name, arrays[name], on_cpu=False, strides=(step,)) for name in _MIRRORED]
        pieces.append(Piece("slot_mapping", slots.astype(np.int64), False, (step,)))
        table = self.block_table_with(stale)
        table = table.astype(np.int64) if batch.dtype == "int64 table" else table
        pieces.append(table_piece("block_table_tensor", table, step))
        if batch.logits_indices is not None:
            indices = [*batch.logits_indices, *[stale] * batch.logits_padding]
            values = np.array(indices, dtype=self.query_start_loc.dtype)
            pieces.append(Piece("logits_indices_padded", values, False, (step,)))
        for name, on_cpu in (("encoder_seq_lens", True), ("dcp_local_seq_lens", False)):
            rows = getattr(batch, name)
            if rows is not None:
                pieces.append(
                    Piece(name, np.array(rows, dtype=self.seq_lens.dtype), on_cpu, (step,))
                )
        if batch.subclassed:
            sizes = (self.num_reqs, self.num_actual_tokens, batch.spare_slots)
            pieces += subclass.pieces(*sizes, stale, step)
        if batch.later:
            offsets, seq_lens = self.query_start_loc, self.seq_lens
            pieces += later.pieces(batch, offsets, seq_lens, self.num_actual_tokens, stale, step)
        return pieces


def _dtype(batch: Batch, what: str) -> np.dtype:
    return np.dtype(np.int64 if batch.dtype in ("int64", f"int64 {what}") else np.int32)


def table_piece(name: str, table: np.ndarray, step: int) -> Piece:
    """Return a block table as a piece."""
    return Piece(name, table, on_cpu=False, strides=row_strides(table.shape, step))


def row_strides(shape: tuple[int, ...], step: int = 1) -> tuple[int, int]:
    """Return the strides of rows that are dense in memory or, in half of the shapes, apart."""
    rows, width = shape
    return step * width + (0 if (rows + width) % 2 else _GAP), step


def _block_table(batch: Batch, num_reqs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the block table, and a mask of its stale places."""
    lengths = np.zeros(num_reqs, dtype=np.int64)
    lengths[: len(batch.blocks)] = [len(blocks) for blocks in batch.blocks]
    width = int(lengths.max(initial=0)) + batch.spare_columns
    if num_reqs and not width:
        width = 1
    table = np.zeros((num_reqs, width), dtype=np.int32)
    live = np.arange(width) < lengths[:, None]
    table[live] = [block for blocks in batch.blocks for block in blocks]
    return table, ~live


def _slots(arrays: BatchArrays) -> np.ndarray:
    """Return the slot of each token, -1 for padding; raise IndexError for one without a block."""
    batch, slots = arrays.batch, np.full(arrays.num_actual_tokens, -1, dtype=np.int64)
    rows = np.repeat(np.arange(arrays.num_reqs), np.diff(arrays.query_start_loc))
    if batch.no_slots:
        slots[: len(rows)] = 0
        return slots
    firsts = arrays.num_computed_tokens - arrays.query_start_loc[:-1]
    positions = np.arange(len(rows)) + firsts.astype(np.int64)[rows]
    columns = positions // batch.block_size
    if arrays.stale_blocks[rows, columns].any():
        raise IndexError("a token has no block")
    ids = arrays.block_table[rows, columns].astype(np.int64)
    slots[: len(rows)] = ids * batch.block_size + positions % batch.block_size
    return slots


_latest: dict[int, tuple[Batch, BatchArrays]] = {}


def batch_arrays(batch: Batch, pattern: int = 0) -> BatchArrays:
    """Return the arrays of `batch`; with pattern 1 its live blocks have other ids."""
    # Each case is laid out several times, hence the cache of the latest batch. Other block
    # ids expose a candidate that returns an earlier result for a batch of the same shape.
    latest = _latest.get(pattern)
    if latest is None or latest[0] is not batch:
        latest = _latest[pattern] = (batch, BatchArrays(batch, other_ids=bool(pattern)))
    return latest[1]


def lay_out(
    batch: Batch,
    pattern: int = 0,
    device: str = "cpu",
    more: Iterable[Piece] = (),
) -> tuple[CommonAttentionMetadata, Arena]:
    """Lay out a batch as metadata on `device`, poisoned with pattern 0 or 1.

    The arena also holds the pieces in `more`. Pattern 1 gives the live blocks other ids.
    The metadata's class is the subclass if the batch is `subclassed`.
    """
    arrays = batch_arrays(batch, pattern)
    stale = STALE_PATTERNS[pattern]
    arena = Arena([*arrays.pieces(stale), *more], stale, device)
    return metadata_of(arrays, arena.tensors), arena


def metadata_of(arrays: BatchArrays, tensors: dict[str, Any]) -> CommonAttentionMetadata:
    """Return the metadata of a batch, of the tensors that its `pieces` became."""
    batch = arrays.batch
    encoder = tensors.get("encoder_seq_lens")
    num_logits = batch.num_logits if batch.logits_indices is None else len(batch.logits_indices)
    metadata_class: type[Any] = CommonAttentionMetadata
    added = dict[str, Any]()
    if batch.subclassed:
        metadata_class = subclass.Subclassed
        added = {name: tensors[name] for name in subclass.TENSORS}
        added |= {name: tensors[name].numpy() for name in subclass.ARRAYS}
        added |= subclass.plain_fields(arrays.num_reqs, arrays.num_actual_tokens, batch.spare_slots)
    if batch.later:
        metadata_class = CommonAttentionMetadataV32
        added = later.fields(batch, arrays.query_start_loc, tensors)
    metadata: CommonAttentionMetadata = metadata_class(
        query_start_loc=tensors["query_start_loc"],
        query_start_loc_cpu=tensors["query_start_loc_cpu"],
        seq_lens=tensors["seq_lens"],
        seq_lens_cpu=tensors["seq_lens_cpu"],
        num_computed_tokens_cpu=tensors["num_computed_tokens_cpu"],
        num_reqs=arrays.num_reqs,
        num_actual_tokens=arrays.num_actual_tokens,
        max_query_len=arrays.max_query_len,
        max_seq_len=arrays.max_seq_len,
        block_table_tensor=tensors["block_table_tensor"],
        slot_mapping=tensors["slot_mapping"],
        causal=batch.causal,
        logits_indices_padded=tensors.get("logits_indices_padded"),
        num_logits_indices=num_logits,
        encoder_seq_lens=None if encoder is None else encoder.numpy(),
        dcp_local_seq_lens=tensors.get("dcp_local_seq_lens"),
        **added,
    )
    return metadata
