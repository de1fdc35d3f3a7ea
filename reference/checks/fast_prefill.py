"""Checks of `make_kv_sharing_fast_prefill_common_attn_metadata` (SPEC.md section 6)."""

from __future__ import annotations

from collections.abc import Iterable

from ..interface.errors import MetadataError
from ..interface.metadata import BatchFields
from .common import check_common_metadata, check_device, check_logits, check_queries

FAST_PREFILL = "make_kv_sharing_fast_prefill_common_attn_metadata"


def check_fast_prefill(metadata: BatchFields) -> None:
    """Require a valid batch; device tensors are not read."""
    check_common_metadata(FAST_PREFILL, metadata)
    check_queries(FAST_PREFILL, metadata)
    check_fast_prefill_logits(metadata)


def check_fast_prefill_logits(metadata: BatchFields) -> None:
    """Require a count with logits indices, and the indices on the device of the batch."""
    check_logits(FAST_PREFILL, metadata)
    indices = metadata.logits_indices_padded
    if indices is not None:
        device = metadata.query_start_loc.device
        check_device(FAST_PREFILL, "logits_indices_padded", indices, device)


def check_token_indices(indices: Iterable[int], num_actual_tokens: int) -> None:
    """Require each of the counted `logits_indices_padded` to be a token of the batch."""
    for place, index in enumerate(indices):
        if not 0 <= index < num_actual_tokens:
            expected = f"a token, 0 to num_actual_tokens - 1 = {num_actual_tokens - 1}"
            raise MetadataError(FAST_PREFILL, f"logits_indices_padded[{place}]", index, expected)
