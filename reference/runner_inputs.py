"""Inputs of a step of model runner V2, and its update after sampling (SPEC.md section 13).

`idx_mapping` (R,), int32 or int64, has the request slot of each batch row, -1 for a dummy row
without a request. `query_start_loc` and `cu_num_logits` have at least R + 1 int32 offsets.
All tensors are int32 unless said otherwise, and on one device. Malformed input raises
MetadataError before anything is written.
"""

from __future__ import annotations

from typing import Annotated

import torch

from .checks import runner_inputs as conditions
from .definition.definition import operation
from .definition.roles import Array, Int

__all__ = [
    "combine_sampled_and_draft_tokens",
    "expand_idx_mapping",
    "get_num_sampled_and_rejected",
    "post_update",
    "post_update_num_computed_tokens",
    "prepare_pos_seq_lens",
    "prepare_prefill_inputs",
]

_INT32, _INT64 = torch.int32, torch.int64
# Axes: R rows, T query tokens, S slots, H tokens of a history, K drafts or samples of a row.
_Rows = Annotated[torch.Tensor, Array(shape=("R",), least=-1, below="S", dense=True)]
_Starts = Annotated[torch.Tensor, Array("query offsets", dtype=_INT32, longer=True, dense=True)]
_LogitStarts = Annotated[torch.Tensor, Array(shape=("R+1",), dtype=_INT32, longer=True, dense=True)]
_PerRow = Annotated[torch.Tensor, Array(shape=("R",), dtype=_INT32, longer=True, dense=True)]
_OfSlots = Annotated[torch.Tensor, Array(shape=("S",), dtype=_INT32, dense=True)]
_PerSlot = Annotated[torch.Tensor, Array(shape=("S",), dtype=_INT32, longer=True, dense=True)]
_History = Annotated[torch.Tensor, Array(shape=("S", "H"), dtype=_INT32, longer=True, dense=True)]
_Last = Annotated[torch.Tensor, Array(shape=("S",), longer=True, dense=True, column=True)]
_WrittenTokens = Annotated[
    torch.Tensor, Array(shape=("T",), dtype=_INT32, written=True, longer=True, dense=True)
]
_WrittenPerRow = Annotated[
    torch.Tensor, Array(shape=("R",), dtype=_INT32, written=True, longer=True, dense=True)
]
_WrittenOfSlots = Annotated[
    torch.Tensor, Array(shape=("S",), dtype=_INT32, written=True, dense=True)
]


@operation(requires=(conditions.require_computed,))
def prepare_pos_seq_lens(
    idx_mapping: _Rows,
    query_start_loc: _Starts,
    num_computed_tokens: _OfSlots,
    pos: Annotated[
        torch.Tensor, Array(shape=("T",), dtype=_INT64, written=True, longer=True, dense=True)
    ],
    seq_lens: _WrittenPerRow,
) -> None:
    """Write the position of each token, and the length of each row's sequence.

    `num_computed_tokens` (slots,), `pos` (at least T,) int64, `seq_lens` (at least R,).
    Token i of a row is at position c + i and the length is c + q; c is 0 in a dummy row.
    Lengths behind row R become 0, positions behind token T stay. SPEC.md section 13.
    """
    starts = query_start_loc.tolist()
    seq_lens.zero_()
    for r, slot in enumerate(idx_mapping.tolist()):
        computed = int(num_computed_tokens[slot]) if slot >= 0 else 0
        for i in range(starts[r + 1] - starts[r]):
            pos[starts[r] + i] = computed + i
        seq_lens[r] = computed + starts[r + 1] - starts[r]


@operation(
    requires=(
        conditions.require_one_row_a_slot,
        conditions.require_computed,
        conditions.require_prompts,
        conditions.require_histories,
    )
)
def prepare_prefill_inputs(
    input_ids: _WrittenTokens,
    next_prefill_tokens: Annotated[
        torch.Tensor, Array(shape=("L", "S"), dtype=_INT32, written=True, dense=True)
    ],
    idx_mapping: _Rows,
    query_start_loc: _Starts,
    all_token_ids: _History,
    prefill_len: _PerSlot,
    num_computed_tokens: _OfSlots,
) -> None:
    """Write the input tokens of rows that are in their prompt, and those that come next.

    `input_ids` (at least T,), `next_prefill_tokens` (lookahead, slots), `all_token_ids`
    (slots, columns), `prefill_len` and `num_computed_tokens` (slots,). A row with
    c < prefill_len gets `all_token_ids[slot, c : c + q]`, and its column of
    `next_prefill_tokens` the tokens that follow, 0 from prefill_len on. Other rows and
    slots stay. SPEC.md section 13.
    """
    starts = query_start_loc.tolist()
    for r, slot in enumerate(idx_mapping.tolist()):
        if slot < 0:
            continue
        length, computed = int(prefill_len[slot]), int(num_computed_tokens[slot])
        if computed >= length:
            continue
        end = computed + starts[r + 1] - starts[r]
        for i in range(end - computed):
            input_ids[starts[r] + i] = all_token_ids[slot, computed + i]
        for i in range(next_prefill_tokens.shape[0]):
            in_prompt = end + i < length
            next_prefill_tokens[i, slot] = all_token_ids[slot, end + i] if in_prompt else 0


@operation(
    requires=(
        conditions.require_logit_offsets,
        conditions.require_drafts,
        conditions.require_prompts,
    )
)
def combine_sampled_and_draft_tokens(
    input_ids: _WrittenTokens,
    idx_mapping: _Rows,
    last_sampled_tokens: _Last,
    query_start_loc: _Starts,
    seq_lens: _PerRow,
    prefill_len: _OfSlots,
    draft_tokens: Annotated[torch.Tensor, Array(shape=("S", "K"), longer=True, dense=True)],
    cu_num_logits: _LogitStarts,
    num_logits: int,
    num_new_sampled_tokens: Annotated[int, Int(below=2)] = 1,
) -> Annotated[torch.Tensor, Array(shape=("num_logits",), dtype=_INT64)]:
    """Write sampled and draft tokens to the input, and return the tokens with logits, int64.

    `last_sampled_tokens` (slots,) or (slots, 1) and `draft_tokens` (slots, K) are int32 or
    int64; `seq_lens` (at least R,), `prefill_len` (slots,). Row r has its n logits at the
    last n tokens of its query. If s > prefill_len, the first of them gets the last sampled
    token, provided that it lies past the prompt and `num_new_sampled_tokens` is 1, and the
    last n - `num_new_sampled_tokens` get the draft tokens. SPEC.md section 13.
    """
    starts, offsets = query_start_loc.tolist(), cu_num_logits.tolist()
    logits_indices = torch.empty(num_logits, dtype=torch.int64, device=input_ids.device)
    last = last_sampled_tokens.reshape(-1)
    for r, slot in enumerate(idx_mapping.tolist()):
        count = offsets[r + 1] - offsets[r]
        first = starts[r + 1] - count
        for i in range(count):
            logits_indices[offsets[r] + i] = first + i
        if slot < 0 or count == 0 or int(seq_lens[r]) <= int(prefill_len[slot]):
            continue
        past_prompt = int(seq_lens[r]) - count >= int(prefill_len[slot])
        if num_new_sampled_tokens == 1 and past_prompt:
            input_ids[first] = last[slot]
        drafts = count - num_new_sampled_tokens
        for i in range(drafts):
            input_ids[starts[r + 1] - drafts + i] = draft_tokens[slot, i]
    return logits_indices


@operation(
    results=("slots", "places"),
    requires=(conditions.require_logit_offsets, conditions.require_expandable),
)
def expand_idx_mapping(
    idx_mapping: Annotated[torch.Tensor, Array(shape=("R",), least=-1, below=2**31, dense=True)],
    total_num_logits: int,
    cu_num_logits: _LogitStarts,
    max_expand_len: int,  # noqa: ARG001, a kernel's bound, which the logits must keep
) -> tuple[
    Annotated[torch.Tensor, Array(shape=("total_num_logits",))],
    Annotated[torch.Tensor, Array(shape=("total_num_logits",), dtype=_INT32)],
]:
    """Return the slot of each logit and its place among its row's logits.

    The slots have the dtype of `idx_mapping`, the places are int32. No row has more than
    `max_expand_len` logits. SPEC.md section 13.
    """
    offsets = cu_num_logits.tolist()
    slots = idx_mapping.new_empty(total_num_logits)
    places = torch.empty(total_num_logits, dtype=torch.int32, device=idx_mapping.device)
    for r, slot in enumerate(idx_mapping.tolist()):
        for i in range(offsets[r + 1] - offsets[r]):
            slots[offsets[r] + i] = slot
            places[offsets[r] + i] = i
    return slots, places


@operation(
    results=("sampled", "num_rejected"),
    requires=(
        conditions.require_logit_offsets,
        conditions.require_prompts,
        conditions.require_sampled_logits,
    ),
)
def get_num_sampled_and_rejected(
    num_sampled: _WrittenPerRow,
    seq_lens: _PerRow,
    cu_num_logits: _LogitStarts,
    idx_mapping: _Rows,
    prefill_len: _OfSlots,
) -> tuple[
    Annotated[torch.Tensor, Array(shape=("?",), dtype=_INT32, may_alias=True)],
    Annotated[torch.Tensor, Array(shape=("?",), dtype=_INT32)],
]:
    """Return the sampled and the rejected tokens of each row.

    `num_sampled` (at least R,) is written and returned: 0 in dummy rows and in rows still
    in their prompt (s < prefill_len). The second tensor has its shape: 0 in those rows,
    otherwise logits - sampled; what is behind row R is don't care. SPEC.md section 13.
    """
    offsets = cu_num_logits.tolist()
    num_rejected = torch.zeros_like(num_sampled)
    for r, slot in enumerate(idx_mapping.tolist()):
        if slot < 0 or int(seq_lens[r]) < int(prefill_len[slot]):
            num_sampled[r] = 0
        else:
            num_rejected[r] = offsets[r + 1] - offsets[r] - int(num_sampled[r])
    return num_sampled, num_rejected


@operation(
    requires=(
        conditions.require_one_row_a_slot,
        conditions.require_room,
        conditions.require_rejectable,
        conditions.require_vocabulary,
    )
)
def post_update(
    idx_mapping: _Rows,
    num_computed_tokens: _WrittenOfSlots,
    last_sampled_tokens: Annotated[
        torch.Tensor,
        Array(shape=("S",), written=True, longer=True, dense=True, column=True),
    ],
    output_bin_counts: Annotated[
        torch.Tensor,
        Array(shape=("S", "V"), dtype=_INT32, written=True, longer=True, dense=True),
    ]
    | None,
    sampled_tokens: Annotated[torch.Tensor, Array(shape=("R", "K"), longer=True, dense=True)],
    num_sampled: _PerRow,
    num_rejected: _PerRow,
    query_start_loc: _Starts | None,
    all_token_ids: Annotated[
        torch.Tensor,
        Array(shape=("S", "H"), dtype=_INT32, written=True, longer=True, dense=True),
    ],
    total_len: Annotated[
        torch.Tensor, Array(shape=("S",), dtype=_INT32, written=True, longer=True, dense=True)
    ],
) -> None:
    """Add the sampled tokens of each row to the state of its slot; skip dummy rows.

    `sampled_tokens` (at least R, S) int32 or int64, of which row r has the first
    `num_sampled[r]`: they follow the `total_len[slot]` tokens in `all_token_ids[slot]` and
    are counted in `output_bin_counts` (slots, vocabulary), if given. Computed tokens grow by
    q - rejected; q is 0 without `query_start_loc`. SPEC.md section 13.
    """
    starts = None if query_start_loc is None else query_start_loc.tolist()
    last = last_sampled_tokens.view(-1)
    for r, slot in enumerate(idx_mapping.tolist()):
        if slot < 0:
            continue
        for token in sampled_tokens[r, : int(num_sampled[r])].tolist():
            all_token_ids[slot, int(total_len[slot])] = token
            total_len[slot] += 1
            last[slot] = token
            if output_bin_counts is not None:
                output_bin_counts[slot, token] += 1
        query_len = 0 if starts is None else starts[r + 1] - starts[r]
        num_computed_tokens[slot] += query_len - int(num_rejected[r])


@operation(requires=(conditions.require_one_row_a_slot,))
def post_update_num_computed_tokens(
    idx_mapping: _Rows,
    num_computed_tokens: _WrittenOfSlots,
    query_start_loc: _Starts,
) -> None:
    """Add each row's query tokens to `num_computed_tokens` (slots,); skip dummy rows.

    SPEC.md section 13.
    """
    starts = query_start_loc.tolist()
    for r, slot in enumerate(idx_mapping.tolist()):
        if slot >= 0:
            num_computed_tokens[slot] += starts[r + 1] - starts[r]
