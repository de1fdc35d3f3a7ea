"""Mistakes to make in reference and optimized alike: each turns a right function into a wrong one.

A planter takes the function or class of either package and returns one that does the same
but for the mistake, so that what both get wrong is the same to the last element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

CONSUMER, INVARIANTS = "consumer", "invariants"


class Mistake(NamedTuple):
    """One mistake, and who sees it."""

    name: str
    operation: str
    part: str
    """Name of the function or class that both packages offer."""
    plant: Callable[[Any], Any]
    seen_by: tuple[str, ...]
    """All oracles that object."""
    says: str
    """How the consumer names it."""
    boundary: str = ""
    """The case to judge where many would cost too much."""


def _rows_from_the_first(split: Any) -> Any:
    """Each slice gets the block-table rows from the batch's first request on."""

    def wrong(ubatch_slice: Any, metadata: Any) -> Any:
        child = split(ubatch_slice, metadata)
        table = metadata.block_table_tensor[: child.num_reqs]
        return replace(child, block_table_tensor=table)

    return wrong


def _absolute_lengths(split: Any) -> Any:
    """A request that loses its tail to the next slice keeps its whole length."""

    def wrong(slices: Any, metadata: Any) -> Any:
        children = split(slices, metadata)
        return [
            _with_lengths(child, metadata.seq_lens_cpu[one.request_slice].clone())
            for one, child in zip(slices, children, strict=True)
        ]

    return wrong


def _with_lengths(metadata: Any, seq_lens: torch.Tensor) -> Any:
    computed = seq_lens - metadata.query_start_loc_cpu.diff()
    return replace(
        metadata,
        seq_lens=seq_lens.to(metadata.seq_lens),
        seq_lens_cpu=seq_lens.to(metadata.seq_lens_cpu),
        num_computed_tokens_cpu=computed.to(metadata.num_computed_tokens_cpu),
        max_seq_len=max(seq_lens.tolist(), default=0),
    )


def _page_too_far(virtual_batches: Any) -> Any:
    """Every virtual request but a sequence's first chunk gets the pages behind its own."""

    def wrong(chunk: int, metadata: Any, block_size: int = 0) -> Any:
        made = virtual_batches(chunk, metadata, block_size)
        return replace(made, block_table_tensor=made.block_table_tensor.roll(-1, 1))

    return wrong


def _chunk_short(virtual_batches: Any) -> Any:
    """Full chunks end one key early."""

    def wrong(chunk: int, metadata: Any, block_size: int = 0) -> Any:
        made = virtual_batches(chunk, metadata, block_size)
        lens = made.seq_lens_cpu
        return _with_lengths(made, torch.where(lens == chunk, lens - 1, lens))

    return wrong


def _block_edges(compute_slot_mapping: Any) -> Any:
    """The last token of a block goes to the block behind it, where there is one."""

    def wrong(profile: bool, slots: list[int], seq_id: int, *others: Any) -> None:
        before = len(slots)
        compute_slot_mapping(profile, slots, seq_id, *others)
        seq_len, context_len, _, block_size, tables = others
        if profile:
            return
        blocks = tables[seq_id]
        for index in range(before, min(len(slots), before + seq_len - context_len)):
            column, place = divmod(context_len + index - before, block_size)
            if slots[index] != -1 and place == block_size - 1 and column + 1 < len(blocks):
                slots[index] = blocks[column + 1] * block_size + place

    return wrong


def _batch_block_edges(build_slot_mapping: Any) -> Any:
    """The same in a batch."""

    def wrong(starts: Any, computed: Any, table: Any, block_size: int, **options: Any) -> Any:
        shifted = table.to(torch.int64).roll(-1, 1)
        slots = build_slot_mapping(starts, computed, table, block_size, **options)
        for row, (first, end) in enumerate(zip(starts.tolist(), starts.tolist()[1:], strict=False)):
            for token in range(first, end):
                column, place = divmod(int(computed[row]) + token - first, block_size)
                last = place == block_size - 1 and column + 1 < table.shape[1]
                if token < len(slots) and slots[token] != -1 and last:
                    slots[token] = shifted[row, column] * block_size + place
        return slots

    return wrong


def _rebased_lengths(make: Any) -> Any:
    """The keys are reduced with the queries."""

    def wrong(metadata: Any) -> Any:
        made = make(metadata)
        if made is metadata:
            return made
        lens = made.num_computed_tokens_cpu + made.query_start_loc_cpu.diff()
        return replace(
            made, seq_lens=lens.to(made.seq_lens), seq_lens_cpu=lens.to(made.seq_lens_cpu)
        )

    return wrong


def _any_lengths(split: Any) -> Any:
    """Decodes of a uniform batch may have any number of queries up to the threshold."""

    def wrong(metadata: Any, decode_threshold: int = 1, require_uniform: bool = False) -> Any:
        split(metadata, decode_threshold, require_uniform)
        return split(metadata, decode_threshold)

    return wrong


def _first_blocks(builder: Any) -> Any:
    """A window's decode reads the first blocks of its sequence, not the last."""

    class Wrong(builder):  # type: ignore[misc]  # either package's
        def build(self, *args: Any) -> Any:
            made, row = super().build(*args), 0
            for group in self.input_builder.inter_data_list:
                for seq_id, window in zip(
                    group.seq_ids, group.curr_sliding_window_blocks, strict=True
                ):
                    if window and not group.is_prompt:
                        blocks = group.block_tables[seq_id][:window]
                        ids = torch.tensor([int(block) for block in blocks], dtype=torch.int32)
                        made.block_tables[row, : len(blocks)] = ids
                    row += 1
            return made

    return Wrong


def _blocks_stay(batch: Any) -> Any:
    """Rows that are swapped leave their blocks where they were."""

    class Wrong(batch):  # type: ignore[misc]  # either package's
        def swap_states(self, i: int, j: int) -> None:
            super().swap_states(i, j)
            held = int(self.num_blocks[[i, j]].max())
            self.block_table[[i, j], :held] = self.block_table[[j, i], :held]

    return Wrong


def _absolute_views(metadata_class: Any) -> Any:
    """The view of the prefills keeps the lengths of the rows before it."""

    class Wrong(metadata_class):  # type: ignore[misc]  # either package's
        @property
        def prefill_metadata(self) -> Any:
            view = super().prefill_metadata
            if view is not None and self.num_decodes:
                view.seq_lens = self.seq_lens[: self.num_prefills]
            return view

    return Wrong


def _wide_window(impl: Any) -> Any:
    """A window of one key too many."""

    class Wrong(impl):  # type: ignore[misc]  # either package's
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            left, right = vars(self)["sliding_window"]
            self.sliding_window = (left + (left >= 0), right)

    return Wrong


def _next_head(attend: Any) -> Any:
    """Groups of query heads start one head late."""

    def wrong(query: torch.Tensor, *args: Any, out: torch.Tensor, **options: Any) -> None:
        attend(query.roll(1, 1), *args, out=out, **options)
        out.copy_(out.roll(-1, 1))

    return wrong


def _no_soft_cap(impl: Any) -> Any:
    """Scores go to the softmax as they are."""

    class Wrong(impl):  # type: ignore[misc]  # either package's
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.logits_soft_cap = 0

    return Wrong


BOTH = (CONSUMER, INVARIANTS)
ON_ONE_CASE = (
    Mistake(
        "blocks of swapped rows stay",
        "batch_sequence",
        "PersistentBatch",
        _blocks_stay,
        (CONSUMER,),
        "sees another request's block",
        "swapped rows (K12)",
    ),
    Mistake(
        "a window of one key too many",
        "XFormersAttentionImpl",
        "XFormersAttentionImpl",
        _wide_window,
        (CONSUMER,),
        "is not attention over the batch",
        "window of 16 (K24, E14)",
    ),
    Mistake(
        "query heads of the next group",
        "paged_attention",
        "paged_attention",
        _next_head,
        (CONSUMER,),
        "is not attention over the batch",
        "NHD",
    ),
    Mistake(
        "no soft cap",
        "XFormersAttentionImpl",
        "XFormersAttentionImpl",
        _no_soft_cap,
        (CONSUMER,),
        "is not attention over the batch",
        "soft cap (K24, E14)",
    ),
)
MISTAKES = (
    Mistake(
        "rows from the first",
        "_make_metadata_with_slice",
        "_make_metadata_with_slice",
        _rows_from_the_first,
        (CONSUMER,),
        "sees ",
    ),
    Mistake(
        "absolute lengths",
        "split_attn_metadata",
        "split_attn_metadata",
        _absolute_lengths,
        BOTH,
        "sees keys of its own future",
    ),
    Mistake(
        "a page too far",
        "make_local_attention_virtual_batches",
        "make_local_attention_virtual_batches",
        _page_too_far,
        (CONSUMER,),
        "sees ",
    ),
    Mistake(
        "a chunk short of a key",
        "make_local_attention_virtual_batches",
        "make_local_attention_virtual_batches",
        _chunk_short,
        BOTH,
        "sees too few keys",
    ),
    Mistake(
        "slots at block edges",
        "compute_slot_mapping",
        "compute_slot_mapping",
        _block_edges,
        (CONSUMER,),
        "writes a token where it is not read",
    ),
    Mistake(
        "slots of a batch at block edges",
        "build_slot_mapping",
        "build_slot_mapping",
        _batch_block_edges,
        BOTH,
        "writes ",
    ),
    Mistake(
        "keys reduced with the queries",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        "make_kv_sharing_fast_prefill_common_attn_metadata",
        _rebased_lengths,
        BOTH,
        "sees too few keys",
    ),
    Mistake(
        "not uniform",
        "split_decodes_and_prefills",
        "split_decodes_and_prefills",
        _any_lengths,
        (CONSUMER,),
        "takes rows of several lengths for uniform ones",
    ),
    Mistake(
        "first blocks of a window",
        "CommonMetadataBuilder",
        "CommonMetadataBuilder",
        _first_blocks,
        (CONSUMER,),
        "sees ",
    ),
    Mistake(
        "a view that is not rebased",
        "XFormersAttentionMetadata",
        "XFormersAttentionMetadata",
        _absolute_views,
        BOTH,
        "sees ",
    ),
)
