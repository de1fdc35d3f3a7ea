"""`validate`: check every invariant of a batch on all of its tensors (SPEC.md section 1)."""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from ..interface.metadata import BatchFields
from .common import (
    check_common_metadata,
    check_int,
    check_logits,
    check_queries,
    check_rows,
    check_sequences,
)

_NAME = "validate"


def validate(metadata: BatchFields, block_size: int | None = None) -> None:
    """Raise `MetadataError` unless every invariant of SPEC.md section 1 holds.

    Device tensors are read, which synchronises: use it for tests and debugging. With
    `block_size` (tokens per block) the width of the block table is checked too. Raise
    `TypeError` for wrong types.
    """
    check_common_metadata(_NAME, metadata)
    _check_mirrors(metadata)
    check_queries(_NAME, metadata)
    check_sequences(_NAME, metadata)
    _check_slots(metadata)
    check_logits(_NAME, metadata)
    check_rows(_NAME, metadata)
    if block_size is not None:
        check_int(_NAME, "block_size", block_size, 1)
        _check_width(metadata, block_size)


def _check_mirrors(md: BatchFields) -> None:
    for field in ("query_start_loc", "seq_lens"):
        device, mirror = getattr(md, field), getattr(md, f"{field}_cpu")
        if device.dtype != mirror.dtype or not torch.equal(device.cpu(), mirror):
            raise MetadataError(_NAME, f"{field}_cpu", mirror.tolist(), f"{device.tolist()}")


def _check_slots(md: BatchFields) -> None:
    seen: dict[int, int] = {}
    for token, slot in enumerate(md.slot_mapping[: md.num_actual_tokens].tolist()):
        if slot < -1:
            raise MetadataError(_NAME, f"slot_mapping[{token}]", slot, "-1 or a slot")
        if slot >= 0 and slot in seen:
            expected = f"a slot of its own (token {seen[slot]} has this one)"
            raise MetadataError(_NAME, f"slot_mapping[{token}]", slot, expected)
        seen[slot] = token


def _check_width(md: BatchFields, block_size: int) -> None:
    width = md.block_table_tensor.shape[1]
    for row, seq_len in enumerate(md.seq_lens_cpu.tolist()):
        if width * block_size < seq_len:
            expected = f"enough for {seq_len} tokens of row {row} in blocks of {block_size}"
            raise MetadataError(_NAME, "block_table_tensor", f"{width} columns wide", expected)
