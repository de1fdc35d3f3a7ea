"""Mistakes in the split between decodes and prefills and in causal convolution."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from attnproof.harness.strength.mutation import mutation

_SPLIT, _CONV = "split_decodes_and_prefills", "compute_causal_conv1d_metadata"
_REORDER = "reorder_batch_to_split_decodes_and_prefills"
_PROGRAMS = 1024


@mutation(
    _SPLIT,
    "K9",
    source="vllm-project/vllm#29644",
    diagnoses=("zero-length (padded) rows miscounted",),
    both=("invariants",),
)
def padded_uniform(
    split: Any,
    common_attn_metadata: Any,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    *extends: bool,
) -> Any:
    """A uniform run of decodes ends at the first row of another length, padded rows included."""
    right = split(common_attn_metadata, decode_threshold, require_uniform, *extends)
    lengths = common_attn_metadata.query_start_loc_cpu.diff().tolist()
    shortcut = common_attn_metadata.max_query_len <= decode_threshold == 1
    usual = require_uniform and all(extends)
    if not usual or shortcut or not lengths or lengths[0] > decode_threshold:
        return right
    run = next((row for row, q in enumerate(lengths) if q != lengths[0]), len(lengths))
    if run == len(lengths):
        return right
    tokens = int(common_attn_metadata.query_start_loc_cpu[run])
    return run, len(lengths) - run, tokens, common_attn_metadata.num_actual_tokens - tokens


@mutation(
    _SPLIT,
    "K11",
    source="vllm-project/vllm#34187",
    diagnoses=("padded tokens miscounted",),
    both=("invariants",),
)
def unpadded_tokens(split: Any, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
    """In a batch of decodes the requests include graph padding and the tokens do not."""
    counts = split(common_attn_metadata, *args, **kwargs)
    if counts[1] or not counts[0]:
        return counts
    return (counts[0], 0, int(common_attn_metadata.query_start_loc_cpu[-1]), 0)


@mutation(
    _SPLIT,
    "K13",
    source="vllm-project/vllm#41841",
    diagnoses=(
        "zero-length (padded) rows miscounted",
        "padded tokens miscounted",
        "depends on stale entries",
    ),
    both=("invariants",),
)
def earlier_rows(
    split: Any, common_attn_metadata: Any, decode_threshold: int = 1, *args: Any, **kw: Any
) -> Any:
    """A stale row behind the batch makes a batch of decodes a mixed one."""
    counts = split(common_attn_metadata, decode_threshold, *args, **kw)
    offsets = common_attn_metadata.query_start_loc_cpu
    # A view of the caller's buffer with one row more than the batch, if there is one.
    rows = offsets.untyped_storage().nbytes() // offsets.itemsize - offsets.storage_offset()
    if rows <= len(offsets) * offsets.stride(0):
        return counts
    buffer = offsets.as_strided((len(offsets) + 1,), offsets.stride())
    live = int((offsets.diff() > 0).sum())
    if int(buffer.diff()[-1]) <= decode_threshold or counts[1] or live == counts[0]:
        return counts
    tokens = int(offsets[-1])
    return (live, counts[0] - live, tokens, counts[2] - tokens)


@mutation(
    _SPLIT,
    "K38",
    source="vllm-project/vllm#51562",
    diagnoses=("a row in its prompt taken for a decode",),
    both=("invariants",),
)
def first_token_of_a_prompt_is_a_decode(
    split: Any,
    common_attn_metadata: Any,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> Any:
    """A prompt's short first chunk is a decode by its length: it reads state that nobody wrote."""
    given = common_attn_metadata, decode_threshold, require_uniform
    split(*given, treat_short_extends_as_decodes)  # malformed input raises here
    return split(*given)


@mutation(
    _SPLIT,
    diagnoses=("takes rows of several lengths for uniform ones",),
    both=("consumer",),
    examined="both",
)
def not_uniform(
    split: Any,
    common_attn_metadata: Any,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    *extends: bool,
) -> Any:
    """Decodes of a uniform batch may have different numbers of queries."""
    split(common_attn_metadata, decode_threshold, require_uniform, *extends)  # for its errors
    return split(common_attn_metadata, decode_threshold, False, *extends)


@mutation(
    _CONV,
    "K10",
    source="vllm-project/vllm#39936",
    diagnoses=("list where a tensor was expected",),
)
def lists_on_one_branch(compute: Any, query_start_loc_p: Any) -> Any:
    """A faster path for one request returns a list for a tensor."""
    nums_dict, batch_ptr, chunk_ptr = compute(query_start_loc_p)
    programs = nums_dict[8]
    if len(programs["nums"]) == 1:
        programs["offsetlist"] = list(range(programs["mlist_len"]))
    return nums_dict, batch_ptr, chunk_ptr


@mutation(
    _CONV,
    "K22",
    source="vllm-project/vllm#20838",
    diagnoses=("pointers not sized for the programs",),
    tokens=8 * _PROGRAMS + 1,
    both=("invariants",),
)
def large_batch(compute: Any, query_start_loc_p: Any) -> Any:
    """Pointers keep their first size, which does not hold the programs of a large batch."""
    nums_dict, *pointers = compute(query_start_loc_p)
    batch_ptr, chunk_ptr = (pointer[: 2 * _PROGRAMS].clone() for pointer in pointers)
    nums_dict[8] |= {"batch_ptr": batch_ptr, "token_chunk_offset_ptr": chunk_ptr}
    return nums_dict, batch_ptr, chunk_ptr


@mutation(
    _REORDER,
    diagnoses=("has a decode behind a prefill", "the opposite answer"),
    both=("invariants",),
    requests=5,
)
def schedule_taken_in_its_own_order(
    reorder: Any, input_batch: Any, scheduler_output: Any, decode_threshold: int = 1
) -> Any:
    """A schedule of exactly the batch's requests is taken in its own order, not by request."""
    rows, tokens = input_batch.req_ids, scheduler_output.num_scheduled_tokens
    if tokens.keys() == set(rows):
        tokens = dict(zip(rows, tokens.values(), strict=True))
    ordered = SimpleNamespace(num_scheduled_tokens=tokens)
    return reorder(input_batch, ordered, decode_threshold)


@mutation(
    "CommonAttentionMetadata",
    diagnoses=("grows in the caller's buffer",),
    one=("invariants",),
    both=("invariants",),
    examples=90,
)
def padding_in_the_callers_buffer(metadata: Any) -> Any:
    """Slots grow in the caller's own buffer if the entries behind them are -1 already."""

    class CommonAttentionMetadata(metadata):
        def padded(self, num_tokens: int, num_reqs: int) -> Any:
            made = super().padded(num_tokens, num_reqs)
            buffer = self.slot_mapping[:num_tokens]
            if num_tokens > self.num_actual_tokens and torch.equal(buffer, made.slot_mapping):
                made.slot_mapping = buffer
            return made

    return CommonAttentionMetadata


@mutation(_REORDER, diagnoses=("the opposite answer",), both=("invariants",), tokens=2**17)
def scheduled_tokens_in_16_bits(
    reorder: Any, input_batch: Any, scheduler_output: Any, decode_threshold: int = 1
) -> Any:
    """Scheduled tokens are narrowed to int16: the longest prompts wrap and count as decodes."""
    tokens = {
        req_id: max(0, (count + 2**15) % 2**16 - 2**15)
        for req_id, count in scheduler_output.num_scheduled_tokens.items()
    }
    narrowed = SimpleNamespace(num_scheduled_tokens=tokens)
    return reorder(input_batch, narrowed, decode_threshold)
