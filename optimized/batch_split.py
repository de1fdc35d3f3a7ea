"""Split a batch into decodes and prefills (SPEC.md section 2), reading CPU mirrors only."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch

from attnproof.reference.checks.common import (
    check_int,
    check_progress,
    check_queries,
    scheduled_tokens,
)
from attnproof.reference.interface import InputBatch, SchedulerOutput
from attnproof.reference.shared import CommonAttentionMetadata

from .checking import check_call, checks
from .host import batch_split as host

__all__ = [
    "reorder_batch_to_split_decodes_and_prefills",
    "split_decodes_and_prefills",
]

_checked = checks.follow(globals())

_SPLIT = "split_decodes_and_prefills"
_REORDER = "reorder_batch_to_split_decodes_and_prefills"


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int]:
    """Count the leading decodes, the requests after them, and the tokens of both.

    Return (num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens), four
    Python ints. A decode has at most `decode_threshold` query tokens; with
    `require_uniform` all decodes have as many as the first request, and without
    `treat_short_extends_as_decodes` none has its `is_prefilling` set. At most one pass over
    the CPU offsets; no device tensor is read. Errors as in `reference`. SPEC.md sections 2
    and 11.
    """
    if _checked:
        check_call(_SPLIT, **locals())
    if not treat_short_extends_as_decodes:
        return _split_extends(common_attn_metadata, decode_threshold, require_uniform)
    # Decodes alone are the batch of most engine steps, and take 70 ns.
    if common_attn_metadata.max_query_len > decode_threshold or require_uniform:
        return _split(common_attn_metadata, decode_threshold, require_uniform)
    num_reqs = common_attn_metadata.num_reqs
    return (num_reqs, 0, common_attn_metadata.num_actual_tokens if num_reqs else 0, 0)


def _split(md: CommonAttentionMetadata, threshold: int, uniform: bool) -> tuple[int, int, int, int]:
    """Compute `split_decodes_and_prefills` of any batch."""
    num_reqs, num_tokens = md.num_reqs, md.num_actual_tokens
    num_decodes, decode_tokens = num_reqs, num_tokens
    if md.max_query_len > threshold or (uniform and threshold > 1):
        num_decodes, decode_tokens = _leading_decodes(md, threshold, uniform)
        if num_decodes < 0:
            check_queries(_SPLIT, md)
    if num_decodes == num_reqs:
        return (num_reqs, 0, num_tokens if num_reqs else 0, 0)
    return (num_decodes, num_reqs - num_decodes, decode_tokens, num_tokens - decode_tokens)


def _split_extends(
    md: CommonAttentionMetadata, threshold: int, uniform: bool
) -> tuple[int, int, int, int]:
    """Split a batch before its first row that is in its prompt."""
    counts = _split(md, threshold, uniform)
    flags: torch.Tensor = md.is_prefilling  # type: ignore[attr-defined]
    first = int(flags.byte().argmax()) if len(flags) else 0
    if first >= counts[0] or not flags[first]:
        return counts
    decode_tokens = int(md.query_start_loc_cpu[first])
    return (first, md.num_reqs - first, decode_tokens, md.num_actual_tokens - decode_tokens)


def _leading_decodes(md: CommonAttentionMetadata, threshold: int, uniform: bool) -> tuple[int, int]:
    """Return the number of leading decodes and of their tokens; (-1, 0) if lengths disagree."""
    offsets = md.query_start_loc_cpu
    if not offsets.is_contiguous():
        offsets = offsets.contiguous()
    wide, address = offsets.dtype is torch.int64, offsets.data_ptr()
    bounds = md.num_actual_tokens, md.max_query_len
    return host.leading_decodes(wide, address, md.num_reqs, *bounds, threshold, uniform)


def reorder_batch_to_split_decodes_and_prefills(
    input_batch: InputBatch,
    scheduler_output: SchedulerOutput,
    decode_threshold: int = 1,
) -> bool:
    """Move the decodes to the front with few `swap_states` calls.

    Regions and errors as in `reference`, which read the progress of the requests if the
    batch has it. Return True if a row moved. SPEC.md sections 2 and 11.
    """
    if type(decode_threshold) is not int or decode_threshold < 1:
        check_int(_REORDER, "decode_threshold", decode_threshold, 1)
    tokens = _scheduled(input_batch, scheduler_output)
    if hasattr(input_batch, "num_computed_tokens_cpu"):
        return _reorder_by_progress(input_batch, tokens, decode_threshold)
    # Most batches are in order already: no prefill, no decode, or no decode after a prefill.
    if len(tokens) < 2 or max(tokens) <= decode_threshold:
        return False
    if tokens[0] > decode_threshold < tokens[-1] and min(tokens) > decode_threshold:
        return False
    prefills = [row for row, count in enumerate(tokens) if count > decode_threshold]
    num_decodes = len(tokens) - len(prefills)
    if prefills[0] >= num_decodes:
        return False
    decode = len(tokens)
    for prefill in prefills:
        if prefill >= num_decodes:
            break
        decode -= 1
        while tokens[decode] > decode_threshold:
            decode -= 1
        input_batch.swap_states(prefill, decode)
    return True


def _reorder_by_progress(input_batch: InputBatch, tokens: Sequence[int], threshold: int) -> bool:
    """Move rows to the regions that follow from computed, and perhaps prompt, tokens."""
    if _checked:
        check_progress(_REORDER, input_batch)
    num_reqs = len(tokens)
    batch: Any = input_batch
    computed = np.asarray(batch.num_computed_tokens_cpu)[:num_reqs]
    prompts = getattr(batch, "num_prompt_tokens", None)
    query_lens = np.array(tokens, np.int64)
    has_context, short = computed > 0, query_lens <= threshold
    if prompts is None:
        regions = np.where(short, 0, np.where(has_context, 2, 3))
    else:
        extends = np.where(short, computed < np.asarray(prompts)[:num_reqs], 2)
        regions = np.where(has_context, extends, 3)
    swaps = host.swaps_to_order(regions)
    for row, other in swaps.tolist():
        input_batch.swap_states(row, other)
    return len(swaps) > 0


def _scheduled(input_batch: InputBatch, scheduler_output: SchedulerOutput) -> Sequence[Any]:
    """Return the scheduled tokens of each row, of a dict by one `itemgetter` call."""
    scheduled, req_ids = scheduler_output.num_scheduled_tokens, input_batch.req_ids
    if type(scheduled) is dict and req_ids:
        try:
            if len(req_ids) == 1:
                return (scheduled[req_ids[0]],)
            tokens: Sequence[Any] = itemgetter(*req_ids)(scheduled)
            return tokens
        except KeyError:
            pass  # the shared check reports the missing request
    return scheduled_tokens(_REORDER, input_batch, scheduler_output)
