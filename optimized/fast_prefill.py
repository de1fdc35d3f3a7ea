"""Fast prefill for layers that share another layer's keys and values (SPEC.md section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from reference.interface import CommonAttentionMetadata
from reference.interface.checks import check_common_metadata
from reference.interface.checks_fast_prefill import (
    FAST_PREFILL,
    check_fast_prefill,
    check_fast_prefill_logits,
    check_token_indices,
)
from reference.interface.subclasses import fast_prefill_backend

from .dispatch import download, on_device
from .host.arrays import array, as_dtype, common_dtype
from .host.fast_prefill import count_sampled, longest_query, queries_fit


def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: CommonAttentionMetadata,
) -> CommonAttentionMetadata:
    """The batch reduced to the tokens whose logits are sampled; its keys stay all there.

    Same result and errors as `reference`. On a device: one kernel counts, then one copy
    takes R + 2 offsets to pinned memory and is waited for, since max_query_len and
    num_actual_tokens are Python ints; no sync where the argument itself is returned.
    SPEC.md section 6.
    """
    md = common_attn_metadata
    _check(md)
    indices = md.logits_indices_padded
    if md.max_query_len == 1 or indices is None:
        return md
    indices = indices[: md.num_logits_indices]
    count = _on_device if on_device(md.query_start_loc) else _on_host
    starts, mirror, longest = count(md, indices)
    return replace(
        md,
        query_start_loc=as_dtype(starts, md.query_start_loc.dtype),
        query_start_loc_cpu=as_dtype(mirror, md.query_start_loc_cpu.dtype),
        num_actual_tokens=int(mirror.numpy()[-1]),
        max_query_len=longest,
        causal=True,
    )


def create_fast_prefill_custom_backend(
    prefix: str, underlying_attn_backend: type[Any]
) -> type[Any]:
    """A subclass of the backend whose builder sees only the tokens whose logits are sampled.

    What its builder makes is what the underlying one makes of the reduced batch, with
    the two logits fields. Same classes and errors as `reference`. SPEC.md section 6.
    """
    return fast_prefill_backend(
        prefix, underlying_attn_backend, make_kv_sharing_fast_prefill_common_attn_metadata
    )


_Counted = tuple[torch.Tensor, torch.Tensor, int]
"""Offsets of the reduced batch, their mirror, the longest query."""


def _check(md: CommonAttentionMetadata) -> None:
    """The shared checks in their order; those of the offsets compiled where all is well."""
    check_common_metadata(FAST_PREFILL, md)
    offsets = md.query_start_loc_cpu
    if not queries_fit(array(offsets, offsets.dtype), md.num_actual_tokens, md.max_query_len):
        check_fast_prefill(md)
    check_fast_prefill_logits(md)


def _on_host(md: CommonAttentionMetadata, indices: torch.Tensor) -> _Counted:
    dtype = common_dtype(md.query_start_loc, md.query_start_loc_cpu, indices)
    starts = torch.empty(md.num_reqs + 1, dtype=dtype)
    mirror = torch.empty(md.num_reqs + 1, dtype=dtype)
    longest = count_sampled(
        array(md.query_start_loc_cpu, dtype),
        array(indices, dtype),
        md.num_actual_tokens,
        starts.numpy(),
        mirror.numpy(),
    )
    if longest < 0:
        check_token_indices(indices.tolist(), md.num_actual_tokens)
    return starts, mirror, longest


def _on_device(md: CommonAttentionMetadata, indices: torch.Tensor) -> _Counted:
    from .kernels.fast_prefill import count_sampled_on_device

    counted = torch.empty(
        md.num_reqs + 2, dtype=md.query_start_loc.dtype, device=md.query_start_loc.device
    )
    count_sampled_on_device(md.query_start_loc, indices, md.num_actual_tokens, counted)
    host = download(counted)
    if int(host[-1]):
        check_token_indices(indices.tolist(), md.num_actual_tokens)
    mirror = host[:-1]
    return counted[:-1], mirror, longest_query(array(mirror, mirror.dtype))
