"""Split a batch into decodes, extends and prefills (SPEC.md section 11)."""

from __future__ import annotations

from typing import Annotated

from .definition.definition import operation
from .definition.roles import Int, Metadata
from .shared import CommonAttentionMetadata

__all__ = [
    "split_decodes_prefills_and_extends",
]


@operation
def split_decodes_prefills_and_extends(
    common_attn_metadata: Annotated[CommonAttentionMetadata, Metadata(sequences=True)],
    decode_threshold: Annotated[int, Int(least=1)] = 1,
) -> tuple[int, int, int, int, int, int]:
    """Count the leading decodes, the extends behind them, the prefills, and their tokens.

    Return (num_decodes, num_extends, num_prefills, num_decode_tokens, num_extend_tokens,
    num_prefill_tokens), six Python ints. A decode has at most `decode_threshold` query
    tokens, a prefill more and no computed token, an extend more and some. The extends begin
    at the first request that is no decode, the prefills at the first prefill, whatever
    follows them. Only CPU mirrors are read. Raise MetadataError for a threshold below 1 and
    for malformed metadata. SPEC.md section 11.
    """
    md = common_attn_metadata
    offsets, seq_lens = md.query_start_loc_cpu.tolist(), md.seq_lens_cpu.tolist()
    first_long = first_prefill = md.num_reqs
    for r in reversed(range(md.num_reqs)):
        query_len = offsets[r + 1] - offsets[r]
        if query_len > decode_threshold:
            first_long = r
            if seq_lens[r] == query_len:
                first_prefill = r

    # Padded tokens belong to the last part.
    ends = [*offsets[:-1], md.num_actual_tokens]
    decode_tokens, prefill_start = ends[first_long], ends[first_prefill]
    return (
        first_long,
        first_prefill - first_long,
        md.num_reqs - first_prefill,
        decode_tokens,
        prefill_start - decode_tokens,
        md.num_actual_tokens - prefill_start,
    )
