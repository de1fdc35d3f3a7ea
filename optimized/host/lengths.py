"""Check quickly that the CPU mirrors of a batch are consistent.

If they are not, the shared checks raise the error.
"""

from __future__ import annotations

import torch

from attnproof.reference.shared import CommonAttentionMetadata

from .addresses import int32_at, int64_at
from .arrays import Array, as_dtype, dense
from .compiled import compiled, entry

_LENGTHS = (
    *("query_start_loc", "query_start_loc_cpu"),
    *("seq_lens", "seq_lens_cpu", "num_computed_tokens_cpu"),
)


def dense_lengths(
    md: CommonAttentionMetadata, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the mirrors of offsets, lengths and computed tokens, contiguous and of `dtype`.

    `dtype` is the result of `lengths_dtype`: int32 only if all mirrors are int32.
    """
    offsets, lengths, computed = md.query_start_loc_cpu, md.seq_lens_cpu, md.num_computed_tokens_cpu
    contiguous = offsets.is_contiguous() and lengths.is_contiguous() and computed.is_contiguous()
    if contiguous and dtype is torch.int32:
        return offsets, lengths, computed
    return dense(offsets, dtype), dense(lengths, dtype), dense(computed, dtype)


def take_dtypes(output: CommonAttentionMetadata, batch: CommonAttentionMetadata) -> None:
    """Convert the offsets and lengths of `output` to the dtypes that they have in `batch`."""
    for field in _LENGTHS:
        setattr(output, field, as_dtype(getattr(output, field), getattr(batch, field).dtype))


@entry
def lengths_fit_at(
    wide: bool,
    offsets: int,
    seq_lens: int,
    computed: int,
    num_reqs: int,
    num_actual_tokens: int,
    max_query_len: int,
    max_seq_len: int,
) -> bool:
    """Compute `lengths_fit` of the mirrors at the addresses, int64 if `wide`, otherwise int32."""
    bounds = num_actual_tokens, max_query_len, max_seq_len
    if wide:
        starts, lengths = int64_at(offsets, num_reqs + 1), int64_at(seq_lens, num_reqs)
        return lengths_fit(starts, lengths, int64_at(computed, num_reqs), *bounds)
    starts, lengths = int32_at(offsets, num_reqs + 1), int32_at(seq_lens, num_reqs)
    return lengths_fit(starts, lengths, int32_at(computed, num_reqs), *bounds)


@compiled
def lengths_fit(
    offsets: Array,
    seq_lens: Array,
    computed: Array,
    num_actual_tokens: int,
    max_query_len: int,
    max_seq_len: int,
) -> bool:
    """True if `check_queries` and `check_sequences` would pass."""
    num_reqs = seq_lens.shape[0]
    fit = offsets[0] == 0 and offsets[num_reqs] <= num_actual_tokens
    for r in range(num_reqs):  # no early exit: the loop vectorises
        query_len, seq_len = offsets[r + 1] - offsets[r], seq_lens[r]
        fit &= (query_len >= 0) & (query_len <= max_query_len)
        fit &= (query_len <= seq_len) & (seq_len <= max_seq_len)
        fit &= computed[r] == seq_len - query_len
    return bool(fit)
