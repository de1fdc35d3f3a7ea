"""Split a batch into decodes and prefills (SPEC.md section 2)."""

from __future__ import annotations

from typing import Annotated

from .checks.common import check_int, check_prefilling, check_progress, scheduled_tokens
from .definition.definition import operation
from .definition.roles import Int, Metadata
from .interface import InputBatch, SchedulerOutput
from .shared import CommonAttentionMetadata

__all__ = [
    "reorder_batch_to_split_decodes_and_prefills",
    "split_decodes_and_prefills",
]

_DECODE, _SHORT_EXTEND, _LONG_EXTEND, _PREFILL = range(4)
"""Regions of a reordered batch."""


def _tells_extends(
    operation: str,
    common_attn_metadata: CommonAttentionMetadata,
    treat_short_extends_as_decodes: bool,
) -> None:
    """Require the flags of rows in their prompt if short extends are no decodes."""
    if not treat_short_extends_as_decodes:
        check_prefilling(operation, common_attn_metadata)


@operation(requires=(_tells_extends,))
def split_decodes_and_prefills(
    common_attn_metadata: Annotated[CommonAttentionMetadata, Metadata()],
    decode_threshold: Annotated[int, Int(least=1)] = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int]:
    """Count the leading decodes, the requests after them, and the tokens of both.

    Return (num_decodes, num_prefills, num_decode_tokens, num_prefill_tokens), four
    Python ints. A decode has at most `decode_threshold` query tokens; with
    `require_uniform` all decodes have as many as the first request. Without
    `treat_short_extends_as_decodes` a row whose `is_prefilling` is set is a prefill,
    whatever its length. Every request after the first prefill counts as a prefill. Only
    CPU mirrors are read. Raise MetadataError for a threshold below 1, for short extends
    that must be told apart in a batch without `is_prefilling`, and for malformed
    metadata. SPEC.md sections 2 and 11.
    """
    md = common_attn_metadata
    num_reqs, num_tokens = md.num_reqs, md.num_actual_tokens
    prefilling = [False] * num_reqs
    if not treat_short_extends_as_decodes:
        prefilling = md.is_prefilling.tolist()  # type: ignore[attr-defined]
    if num_reqs == 0:
        return (0, 0, 0, 0)
    short = md.max_query_len <= decode_threshold and not any(prefilling)
    if short and (not require_uniform or decode_threshold == 1):
        return (num_reqs, 0, num_tokens, 0)

    offsets = md.query_start_loc_cpu.tolist()
    query_lens = [offsets[r + 1] - offsets[r] for r in range(num_reqs)]
    if require_uniform:
        num_decodes = _leading_uniform(query_lens, decode_threshold)
    else:
        num_decodes = 0
        while num_decodes < num_reqs and query_lens[num_decodes] <= decode_threshold:
            num_decodes += 1
    if any(prefilling):
        num_decodes = min(num_decodes, prefilling.index(True))
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
    """Move the decodes to the front with few `swap_states` calls.

    A decode has at most `decode_threshold` scheduled tokens. If the batch also has
    `num_computed_tokens_cpu`, prompts without a computed token move behind continued ones;
    if it has `num_prompt_tokens` too, decodes, short extends, long extends and prefills
    follow each other. Order inside a region is free. Return True if a row moved. Raise
    MetadataError before the first swap, for a threshold below 1, for a request that is not
    scheduled and for too short arrays. SPEC.md sections 2 and 11.
    """
    name = "reorder_batch_to_split_decodes_and_prefills"
    check_int(name, "decode_threshold", decode_threshold, 1)
    scheduled = scheduled_tokens(name, input_batch, scheduler_output)
    computed, prompts = check_progress(name, input_batch)
    regions = []
    for row, tokens in enumerate(scheduled):
        short = tokens <= decode_threshold
        if computed is None:
            regions.append(_DECODE if short else _PREFILL)
        elif prompts is None:
            long = _LONG_EXTEND if computed[row] > 0 else _PREFILL
            regions.append(_DECODE if short else long)
        elif computed[row] == 0:
            regions.append(_PREFILL)
        elif not short:
            regions.append(_LONG_EXTEND)
        else:
            regions.append(_DECODE if computed[row] >= prompts[row] else _SHORT_EXTEND)
    ordered, moved = sorted(regions), False
    for row, wanted in enumerate(ordered):
        if regions[row] == wanted:
            continue
        others = [other for other in range(row + 1, len(regions)) if regions[other] == wanted]
        others.reverse()
        # Best is a row that moves to its own region in exchange.
        other = next((r for r in others if ordered[r] == regions[row]), others[0])
        input_batch.swap_states(row, other)
        regions[row], regions[other] = regions[other], regions[row]
        moved = True
    return moved
