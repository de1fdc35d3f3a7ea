"""Split a batch into decodes and prefills (SPEC.md section 2)."""

from __future__ import annotations

from .checks.common import (
    check_bool,
    check_common_metadata,
    check_int,
    check_queries,
    scheduled_tokens,
)
from .interface import InputBatch, SchedulerOutput
from .shared import CommonAttentionMetadata

__all__ = [
    "reorder_batch_to_split_decodes_and_prefills",
    "split_decodes_and_prefills",
]


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
) -> tuple[int, int, int, int]:
    """Count the leading decodes, the requests after them, and the tokens of both.

    Return (num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens), four
    Python ints. A decode has at most `decode_threshold` query tokens; with
    `require_uniform` all decodes have as many as the first request. Every request after
    the first prefill counts as a prefill. Only CPU mirrors are read. Raise MetadataError
    for a threshold below 1 and for malformed metadata. SPEC.md section 2.
    """
    operation = "split_decodes_and_prefills"
    md = common_attn_metadata
    check_common_metadata(operation, md)
    check_int(operation, "decode_threshold", decode_threshold, 1)
    check_bool(operation, "require_uniform", require_uniform)
    check_queries(operation, md)
    num_reqs, num_tokens = md.num_reqs, md.num_actual_tokens
    if num_reqs == 0:
        return (0, 0, 0, 0)
    if md.max_query_len <= decode_threshold and (not require_uniform or decode_threshold == 1):
        return (num_reqs, 0, num_tokens, 0)

    offsets = md.query_start_loc_cpu.tolist()
    query_lens = [offsets[r + 1] - offsets[r] for r in range(num_reqs)]
    if require_uniform:
        num_decodes = _leading_uniform(query_lens, decode_threshold)
    else:
        num_decodes = 0
        while num_decodes < num_reqs and query_lens[num_decodes] <= decode_threshold:
            num_decodes += 1
    num_decode_tokens = num_tokens if num_decodes == num_reqs else offsets[num_decodes]
    return (
        num_decodes,
        num_reqs - num_decodes,
        num_decode_tokens,
        num_tokens - num_decode_tokens,
    )


def _leading_uniform(query_lens: list[int], decode_threshold: int) -> int:
    """Count the leading queries as long as the first; padding may follow them (erratum E2)."""
    if query_lens[0] > decode_threshold:
        return 0
    run = 0
    while run < len(query_lens) and query_lens[run] == query_lens[0]:
        run += 1
    if all(q == 0 for q in query_lens[run:]):
        return len(query_lens)
    return run


def reorder_batch_to_split_decodes_and_prefills(
    input_batch: InputBatch,
    scheduler_output: SchedulerOutput,
    decode_threshold: int = 1,
) -> bool:
    """Move the decodes to the front with as few `swap_states` calls as possible.

    A decode has at most `decode_threshold` scheduled tokens. Return True if a row
    moved. Raise MetadataError before the first swap, for a threshold below 1 and for a
    request that is not scheduled. SPEC.md section 2.
    """
    operation = "reorder_batch_to_split_decodes_and_prefills"
    check_int(operation, "decode_threshold", decode_threshold, 1)
    scheduled = scheduled_tokens(operation, input_batch, scheduler_output)
    is_decode = [tokens <= decode_threshold for tokens in scheduled]
    num_decodes = sum(is_decode)
    prefills = [row for row, decode in enumerate(is_decode) if not decode]
    decodes = [row for row, decode in enumerate(is_decode) if decode]

    moved = False
    for prefill, decode in zip(prefills, reversed(decodes), strict=False):
        if decode < num_decodes:
            break
        input_batch.swap_states(prefill, decode)
        moved = True
    return moved
