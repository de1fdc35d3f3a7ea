"""Split a batch into decodes, extends and prefills (SPEC.md section 11)."""

from __future__ import annotations

import torch

from attnproof.reference.shared import CommonAttentionMetadata

from .checking import check_call, checks
from .host import batch_regions as host

__all__ = [
    "split_decodes_prefills_and_extends",
]

_checked = checks.follow(globals())


def split_decodes_prefills_and_extends(
    common_attn_metadata: CommonAttentionMetadata, decode_threshold: int = 1
) -> tuple[int, int, int, int, int, int]:
    """Count the leading decodes, the extends behind them, the prefills, and their tokens.

    Return (num_decodes, num_extends, num_prefills, num_decode_tokens, num_extend_tokens,
    num_prefill_tokens), six Python ints. At most one pass over the CPU mirrors, up to the
    first prefill; no device tensor is read. Errors as in `reference`. SPEC.md section 11.
    """
    if _checked:
        check_call("split_decodes_prefills_and_extends", **locals())
    md = common_attn_metadata
    num_reqs, num_tokens = md.num_reqs, md.num_actual_tokens
    if md.max_query_len <= decode_threshold:
        return (num_reqs, 0, 0, num_tokens, 0, 0)
    offsets, lengths = md.query_start_loc_cpu, md.seq_lens_cpu
    if not offsets.is_contiguous() or not lengths.is_contiguous():
        offsets, lengths = offsets.contiguous(), lengths.contiguous()
    first_long, first_prefill, decode_tokens, prefill_start = host.leading_regions(
        offsets.data_ptr(),
        offsets.dtype is torch.int64,
        lengths.data_ptr(),
        lengths.dtype is torch.int64,
        num_reqs,
        decode_threshold,
    )
    decode_tokens = num_tokens if decode_tokens < 0 else decode_tokens
    prefill_start = num_tokens if prefill_start < 0 else prefill_start
    return (
        first_long,
        first_prefill - first_long,
        num_reqs - first_prefill,
        decode_tokens,
        prefill_start - decode_tokens,
        num_tokens - prefill_start,
    )
