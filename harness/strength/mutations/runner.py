"""Mistakes in the request slots of model runner V2 (SPEC.md section 13)."""

from __future__ import annotations

from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation

_SEQUENCE, _TABLES = "runner_sequence", "BlockTables"


@mutation(
    _SEQUENCE,
    part=_TABLES,
    diagnoses=("names another request's block behind the live ones",),
    one=("consumer",),
    both=("consumer",),
    examined=None,
    boundary="shorter request in a longer slot (K18)",
)
def blocks_of_the_request_before(tables: Any) -> Any:
    """A gather copies the live blocks only: behind them are those of the row's last request."""

    class BlockTables(tables):
        def gather_block_tables(self, idx_mapping: Any, *args: Any, **kwargs: Any) -> Any:
            before = [table.clone() for table in self.input_block_tables]
            gathered = super().gather_block_tables(idx_mapping, *args, **kwargs)
            for table, earlier in zip(gathered, before, strict=True):
                rows = len(idx_mapping)
                kept = table[:rows]
                kept.copy_(torch.where(kept == 0, earlier[:rows], kept))
            return gathered

    return BlockTables


@mutation(
    _SEQUENCE,
    part="prepare_pos_seq_lens",
    diagnoses=("padded row keeps an earlier step's length", "is not 0 behind the last row"),
    one=("sequences",),
    both=("consumer",),
    examined=None,
    boundary="padded rows after more requests (K13)",
    steps=7,
)
def lengths_of_an_earlier_step(
    prepare: Any, idx_mapping: Any, starts: Any, computed: Any, pos: Any, seq_lens: Any
) -> None:
    """Lengths behind the last row stay as an earlier step left them."""
    before = seq_lens.clone()
    prepare(idx_mapping, starts, computed, pos, seq_lens)
    rows = len(idx_mapping)
    seq_lens[rows:] = before[rows:]


@mutation(
    _TABLES,
    diagnoses=("32-bit overflow",),
    both=("consumer",),
)
def group_slots_in_32_bits(tables: Any) -> Any:
    """Block id times block size is computed in 32 bits and wraps."""

    class BlockTables(tables):
        def compute_slot_mappings(self, *args: Any, **kwargs: Any) -> Any:
            slots = super().compute_slot_mappings(*args, **kwargs)
            return slots.copy_(slots.to(torch.int32))

    return BlockTables


@mutation(
    _SEQUENCE,
    part="post_update",
    diagnoses=("rejected tokens count as computed", "is not the number of tokens kept"),
    one=("sequences",),
    both=("consumer",),
    examined=None,
    boundary="rejected draft",
)
def rejected_tokens_are_kept(
    update: Any,
    idx_mapping: Any,
    computed: Any,
    last: Any,
    counts: Any,
    sampled: Any,
    num_sampled: Any,
    num_rejected: Any,
    *state: Any,
) -> None:
    """All query tokens count as computed, also those whose drafts were rejected."""
    none = torch.zeros_like(num_rejected)
    update(idx_mapping, computed, last, counts, sampled, num_sampled, none, *state)


@mutation(
    "combine_sampled_and_draft_tokens",
    diagnoses=("is not the token to verify",),
    both=("consumer",),
)
def sampled_token_in_the_prompt(
    combine: Any,
    input_ids: Any,
    idx_mapping: Any,
    last: Any,
    starts: Any,
    seq_lens: Any,
    prefill_len: Any,
    drafts: Any,
    offsets: Any,
    num_logits: int,
    new: int = 1,
) -> Any:
    """The last sampled token is written for a row that is still in its prompt."""
    lengths = (starts, seq_lens, prefill_len, drafts, offsets)
    indices = combine(input_ids, idx_mapping, last, *lengths, num_logits, new)
    for row, slot in enumerate(idx_mapping.tolist()):
        first = int(offsets[row])
        has_logit = new == 1 and slot >= 0 and first < int(offsets[row + 1])
        if has_logit and int(seq_lens[row]) <= int(prefill_len[slot]):
            input_ids[indices[first]] = last[slot, 0]
    return indices


@mutation(
    "get_num_sampled_and_rejected",
    "K40",
    source="vllm-project/vllm#45100",
    diagnoses=("the value of another row",),
    both=("invariants",),
)
def rejected_tokens_of_another_row(count: Any, num_sampled: Any, *args: Any) -> Any:
    """Rejected tokens are those of the rows before requests moved, here by one row."""
    sampled, rejected = count(num_sampled, *args)
    rows = len(args[2])
    moved = rejected.clone()
    moved[:rows] = rejected[:rows].roll(1)
    return sampled, moved


@mutation(
    "expand_idx_mapping",
    diagnoses=("is not the logit's place in its row",),
    both=("invariants",),
)
def places_in_five_bits(expand: Any, *args: Any) -> Any:
    """Slot and place share a number, with five bits for the place: the 33rd logit overflows."""
    slots, places = expand(*args)
    packed = (slots.long() << 5) | places.long()
    return (packed >> 5).to(slots.dtype), (packed & 31).to(places.dtype)


@mutation(
    "prepare_prefill_inputs",
    diagnoses=("is not the prompt's token",),
    both=("consumer",),
    examined=None,
    boundary="equal chunks, the inner one at another depth",
)
def chunks_of_equal_ends(
    prepare: Any,
    input_ids: Any,
    next_prefill_tokens: Any,
    idx_mapping: Any,
    query_start_loc: Any,
    all_token_ids: Any,
    prefill_len: Any,
    num_computed_tokens: Any,
) -> None:
    """Equal chunks are copied from one depth if the first and the last row have the same."""
    requests = query_start_loc, all_token_ids, prefill_len, num_computed_tokens
    prepare(input_ids, next_prefill_tokens, idx_mapping, *requests)
    rows = idx_mapping.shape[0]
    if not rows or int(idx_mapping.min()) < 0:
        return
    slots, queries = idx_mapping.long(), query_start_loc[: rows + 1].diff()
    computed, chunk = num_computed_tokens[slots], int(queries[0])
    prefilling = bool((computed < prefill_len[slots]).all())
    if prefilling and bool((queries == chunk).all()) and bool(computed[0] == computed[-1]):
        depth = int(computed[0])
        block = all_token_ids[slots, depth : depth + chunk]
        input_ids[: rows * chunk] = block.reshape(-1).to(input_ids.dtype)
