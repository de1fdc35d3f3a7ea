"""Fast prefill for layers that share another layer's keys and values (SPEC.md section 6)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from .checks.fast_prefill import check_fast_prefill, check_token_indices
from .shared import CommonAttentionMetadata
from .shared.subclasses import fast_prefill_backend

__all__ = [
    "create_fast_prefill_custom_backend",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
]


def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: CommonAttentionMetadata,
) -> CommonAttentionMetadata:
    """Return the batch reduced to the query tokens whose logits are sampled.

    Offsets, max_query_len and num_actual_tokens count, per request, the first
    `num_logits_indices` entries of `logits_indices_padded` (token indices in any order).
    causal is True; dtypes, all other fields and the class are kept, so every key is still
    attended to and `c == s - q` no longer holds. Return the argument itself if
    `max_query_len` is 1 or the batch has no logits indices. Raise MetadataError for
    logits indices without their count and for an index that is not a token of the batch.
    SPEC.md section 6.
    """
    md = common_attn_metadata
    check_fast_prefill(md)
    if md.max_query_len == 1 or md.logits_indices_padded is None:
        return md
    indices = md.logits_indices_padded[: md.num_logits_indices].tolist()
    check_token_indices(indices, md.num_actual_tokens)

    offsets = md.query_start_loc_cpu.tolist()
    starts = [0]
    for start, end in pairwise(offsets):
        count = 0
        for index in indices:
            if start <= index < end:
                count += 1
        starts.append(starts[-1] + count)
    return replace(
        md,
        query_start_loc=_like(md.query_start_loc, starts),
        query_start_loc_cpu=_like(md.query_start_loc_cpu, starts),
        num_actual_tokens=starts[-1],
        max_query_len=max((end - start for start, end in pairwise(starts)), default=0),
        causal=True,
    )


def create_fast_prefill_custom_backend(
    prefix: str, underlying_attn_backend: type[Any]
) -> type[Any]:
    """Return a subclass of the backend that builds metadata of the sampled tokens only.

    Its builder reduces a batch with `make_kv_sharing_fast_prefill_common_attn_metadata`
    and passes the reduced batch to the underlying builder. The metadata becomes an
    instance of a subclass of its class, with all its attributes and the two logits fields
    of the batch. Backend, builder and metadata classes are named `prefix` followed by the
    underlying name. Raise TypeError for a prefix that is not a string and for an
    argument that is not a backend class. SPEC.md section 6.
    """
    return fast_prefill_backend(
        prefix, underlying_attn_backend, make_kv_sharing_fast_prefill_common_attn_metadata
    )


def _like(tensor: torch.Tensor, values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=tensor.dtype, device=tensor.device)
