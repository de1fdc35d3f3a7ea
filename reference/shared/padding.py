"""Add graph padding to a batch and remove it, as its fields declare (SPEC.md section 1)."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import torch

from ..checks.common import (
    check_common_metadata,
    check_int,
    check_logits,
    check_queries,
    check_rows,
    check_sequences,
)
from ..interface.errors import MetadataError
from ..interface.fields import alignments
from ..interface.metadata import BatchFields

Metadata = TypeVar("Metadata", bound=BatchFields)


def pad(md: Metadata, num_tokens: int, num_reqs: int) -> Metadata:
    """Implement `CommonAttentionMetadata.padded`."""
    operation = "padded"
    _check(operation, md)
    check_int(operation, "num_tokens", num_tokens, md.num_actual_tokens)
    check_int(operation, "num_reqs", num_reqs, md.num_reqs)
    end = int(md.query_start_loc_cpu[-1])
    counts = {"offsets": (md.num_reqs + 1, num_reqs + 1), "request": (md.num_reqs, num_reqs)}
    counts["token"] = (md.num_actual_tokens, num_tokens)
    values: dict[str, Any] = {}
    for name, (alignment, fill) in alignments(type(md)).items():
        value = getattr(md, name)
        if alignment not in ("batch", "row keys") and value is not None:
            live, length = counts[alignment]
            value = _grown(value, live, length, end if alignment == "offsets" else fill)
        values[name] = value
    return type(md)(**values | {"num_reqs": num_reqs, "num_actual_tokens": num_tokens})


def unpad(md: Metadata, num_actual_tokens: int, num_actual_reqs: int) -> Metadata:
    """Implement `CommonAttentionMetadata.unpadded`."""
    operation = "unpadded"
    _check(operation, md)
    _check_cut(operation, md, num_actual_tokens, num_actual_reqs)
    counts = {"offsets": num_actual_reqs + 1, "request": num_actual_reqs}
    counts["token"] = num_actual_tokens
    values: dict[str, Any] = {}
    for name, (alignment, _) in alignments(type(md)).items():
        value = getattr(md, name)
        if alignment == "row keys" and value is not None:
            value = {row: entry for row, entry in value.items() if row < num_actual_reqs}
        elif alignment != "batch" and value is not None:
            value = value[: counts[alignment]]
        values[name] = value
    scalars = {"num_reqs": num_actual_reqs, "num_actual_tokens": num_actual_tokens}
    return type(md)(**values | scalars)


def _check(operation: str, md: BatchFields) -> None:
    check_common_metadata(operation, md)
    check_queries(operation, md)
    check_sequences(operation, md)
    check_logits(operation, md)
    check_rows(operation, md)


def _check_cut(operation: str, md: BatchFields, num_tokens: int, num_reqs: int) -> None:
    """Require that only padding is removed: rows without a sequence, tokens of no request."""
    for field, count, there in (
        ("num_actual_reqs", num_reqs, md.num_reqs),
        ("num_actual_tokens", num_tokens, md.num_actual_tokens),
    ):
        check_int(operation, field, count, 0)
        if count > there:
            raise MetadataError(operation, field, count, f"at most {there}")
    seq_lens = md.seq_lens_cpu.tolist()
    for row in reversed(range(num_reqs, md.num_reqs)):
        if seq_lens[row]:
            expected = f"at least {row + 1}: request {row} has {seq_lens[row]} tokens"
            raise MetadataError(operation, "num_actual_reqs", num_reqs, expected)
    end = int(md.query_start_loc_cpu[-1])
    if num_tokens < end:
        expected = f"at least {end}, query_start_loc's end"
        raise MetadataError(operation, "num_actual_tokens", num_tokens, expected)


def _grown(value: Any, live: int, length: int, fill: int) -> Any:
    """Return the first `live` entries, then `fill` up to `length`; a view if none is added."""
    if length == live:
        return value[:live]
    if isinstance(value, torch.Tensor):
        grown = value.new_full((length, *value.shape[1:]), fill)
        grown[:live] = value[:live]
        return grown
    if isinstance(value, np.ndarray):
        array = np.full((length, *value.shape[1:]), fill, dtype=value.dtype)
        array[:live] = value[:live]
        return array
    return value[:live] + type(value)([fill]) * (length - live)
