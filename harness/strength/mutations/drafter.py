"""Mistakes in the batches of a drafter (SPEC.md section 14)."""

from __future__ import annotations

from copy import copy
from dataclasses import fields, replace
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation
from attnproof.harness.strength.mutations.lengths import with_lengths

_STEP, _NEXT = "eagle_step_update_slot_mapping_and_metadata", "prepare_next_token_ids_padded"
_KEEP, _SLOTS = "prepare_inputs", "compute_new_slot_mapping"


@mutation(
    _STEP,
    diagnoses=("a slot for a token that must have none",),
    both=("consumer", "invariants"),
)
def last_slot_past_the_end(
    step: Any,
    positions: Any,
    table: Any,
    seq_lens: Any,
    block_size: int,
    max_model_len: int,
    out_positions: Any,
    out_slots: Any,
    *rows: Any,
) -> None:
    """A position that reaches max_model_len is clamped, and its token overwrites the last one."""
    before = positions.clone() if isinstance(positions, torch.Tensor) else positions
    step(
        positions,
        table,
        seq_lens,
        block_size,
        max_model_len,
        out_positions,
        out_slots,
        *rows,
    )
    ended = (before + 1 >= max_model_len).nonzero().flatten().tolist()
    last = max_model_len - 1
    column = min(last // block_size, table.shape[1] - 1)
    for row in ended if column >= 0 else ():
        out_slots[row] = int(table[row, column]) * block_size + last % block_size


@mutation(
    _STEP,
    "K35",
    source="vllm-project/vllm#31540",
    diagnoses=(
        "slots of another block size",
        "depends on stale entries",
    ),
    both=("consumer",),
)
def block_size_of_another_group(
    step: Any, positions: Any, table: Any, seq_lens: Any, block_size: int, *rest: Any
) -> None:
    """Slots of draft tokens are computed with the larger block size of another KV-cache group."""
    valid = type(block_size) is int and block_size > 0
    step(positions, table, seq_lens, block_size * 2 if valid else block_size, *rest)


@mutation(
    _KEEP,
    diagnoses=("sees ",),
    both=("consumer",),
    examined="both",
)
def lengths_with_rejected_tokens(
    prepare: Any, common_attn_metadata: Any, *lists: Any
) -> tuple[Any, Any]:
    """The sequences of a drafter keep the tokens that the target model rejected."""
    child, indices = prepare(common_attn_metadata, *lists)
    return with_lengths(child, common_attn_metadata.seq_lens_cpu.clone()), indices


@mutation(_KEEP, diagnoses=("offsets of the whole batch",), both=("consumer", "invariants"))
def offsets_with_rejected_tokens(
    prepare: Any, common_attn_metadata: Any, *lists: Any
) -> tuple[Any, Any]:
    """The offsets of a drafter are those of the batch with the rejected tokens."""
    child, indices = prepare(common_attn_metadata, *lists)
    offsets = common_attn_metadata.query_start_loc
    mirror = common_attn_metadata.query_start_loc_cpu
    wrong = replace(child, query_start_loc=offsets.clone(), query_start_loc_cpu=mirror.clone())
    return wrong, indices


@mutation(
    _KEEP,
    diagnoses=(
        "indices do not leave out the rejected tokens",
        "slots of other tokens than the kept ones",
    ),
    both=("consumer", "invariants"),
)
def tokens_from_the_drafters_offsets(
    prepare: Any, common_attn_metadata: Any, *lists: Any
) -> tuple[Any, Any]:
    """The kept tokens are taken from the drafter's offsets, not from those of the batch."""
    child, indices = prepare(common_attn_metadata, *lists)
    first = torch.arange(len(indices), dtype=indices.dtype, device=indices.device)
    return replace(child, slot_mapping=common_attn_metadata.slot_mapping[first]), first


@mutation(
    _NEXT,
    "K36",
    source="vllm-project/vllm#38556",
    diagnoses=("no backup token for a request without a valid one",),
    both=("invariants",),
)
def no_backup_token(
    prepare: Any, sampled: Any, discarded: Any, backup: Any, vocab_size: int
) -> tuple[Any, Any]:
    """A request that is not discarded and has no valid token continues from token -1."""
    tokens, counts = prepare(sampled, discarded, backup, vocab_size)
    forgotten = (counts == 0) & ~discarded[: len(counts)]
    return tokens.masked_fill(forgotten, -1), counts


@mutation(
    _NEXT,
    "K39",
    source="vllm-project/vllm#56417",
    diagnoses=("another token than the last valid one", "valid tokens not counted"),
    both=("invariants",),
)
def first_column_only(
    prepare: Any, sampled: Any, discarded: Any, backup: Any, vocab_size: int
) -> tuple[Any, Any]:
    """Only the first sampled token of a request is read, though several were accepted."""
    prepare(sampled, discarded, backup, vocab_size)  # malformed input raises here
    tokens, counts = prepare(sampled[:, :1], discarded, backup, vocab_size)
    return tokens, counts


@mutation(_SLOTS, diagnoses=("32-bit overflow",), both=("consumer",))
def int32_product_of_new_slots(compute: Any, *args: Any) -> Any:
    """Block id times block size is computed in 32 bits and wraps, in an extended batch."""
    slots = compute(*args)
    return slots.copy_(slots.to(torch.int32))


@mutation("prepare_inputs_padded", diagnoses=("off by", "wrong"), both=(), examples=90)
def derived_field_of_the_given_batch(prepare: Any, md: Any, *args: Any) -> Any:
    """The child is a copy with other fields: what its class derives stays that of the batch."""
    child, *others = prepare(md, *args)
    copied = copy(md)
    vars(copied).update({f.name: getattr(child, f.name) for f in fields(child) if f.init})
    return (copied, *others)


@mutation(_STEP, diagnoses=("token without its slot",), both=("consumer",))
def next_column_at_a_far_blocks_end(
    step: Any,
    positions: Any,
    table: Any,
    seq_lens: Any,
    block_size: int,
    max_model_len: int,
    out_positions: Any,
    out_slots: Any,
    *rows: Any,
) -> None:
    """A draft's column is taken by a 20-bit reciprocal: one too many at far positions."""
    before = positions.clone() if isinstance(positions, torch.Tensor) else positions
    given = positions, table, seq_lens, block_size, max_model_len, out_positions, out_slots
    step(*given, *rows)
    for row, position in enumerate((before + 1).tolist()[: len(table)]):
        column = position * -(-(2**20) // block_size) >> 20
        if column == position // block_size or position >= max_model_len:
            continue
        out_slots[row] = -1
        if column < table.shape[1]:
            place = position - column * block_size
            out_slots[row] = int(table[row, column]) * block_size + place
