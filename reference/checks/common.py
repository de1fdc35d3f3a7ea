"""Checks of input that both packages run before anything is written (SPEC.md rule 0.6).

They read shapes, dtypes, devices, scalars and CPU tensors only: no device tensor is
read, so no check synchronises. `validate` reads device tensors too.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import torch

from ..interface.errors import MetadataError
from ..interface.fields import added_fields
from ..interface.metadata import BatchFields, InputBatch, SchedulerOutput

_INT32, _INT64 = torch.int32, torch.int64


def check_int(operation: str, field: str, value: object, minimum: int) -> None:
    """Require a Python integer of at least `minimum` (TypeError, MetadataError)."""
    if type(value) is not int:
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected int")
    if value < minimum:
        raise MetadataError(operation, field, value, f"at least {minimum}")


def check_bool(operation: str, field: str, value: object) -> None:
    """Require a Python bool (TypeError)."""
    if type(value) is not bool:
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected bool")


def check_tensor(operation: str, field: str, value: object, ndim: int) -> torch.Tensor:
    """Require an integer tensor (int32 or int64) of `ndim` dimensions."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected torch.Tensor")
    if value.ndim != ndim:
        raise MetadataError(operation, field, f"of shape {tuple(value.shape)}", f"{ndim}-D")
    if value.dtype is not _INT32 and value.dtype is not _INT64:
        raise MetadataError(operation, field, f"of dtype {value.dtype}", "int32 or int64")
    return value


def check_length(operation: str, field: str, tensor: torch.Tensor, length: int) -> None:
    """Require `length` rows."""
    if tensor.shape[0] != length:
        raise MetadataError(operation, field, f"of length {tensor.shape[0]}", f"length {length}")


def check_cpu(operation: str, field: str, tensor: torch.Tensor) -> None:
    """Require a CPU tensor."""
    if not tensor.is_cpu:
        raise MetadataError(operation, field, f"on {tensor.device}", "on the CPU")


def check_offsets(operation: str, field: str, offsets: torch.Tensor) -> None:
    """Require offsets on the CPU that start at 0 and never decrease."""
    values = offsets.tolist()
    if not values or values[0] != 0:
        got = f"{values[0]} at index 0" if values else "empty"
        raise MetadataError(operation, field, got, "0 at index 0")
    for index in range(1, len(values)):
        if values[index] < values[index - 1]:
            got = f"{values[index - 1]}, {values[index]} at index {index - 1}"
            raise MetadataError(operation, field, got, "non-decreasing offsets")


def check_common_metadata(operation: str, metadata: BatchFields) -> None:
    """Require consistent shapes, dtypes, devices and scalars of a batch; no tensor is read."""
    md = metadata
    if not isinstance(md, BatchFields):
        got, expected = type(md).__name__, "CommonAttentionMetadata"
        if got == expected:  # an engine's class of the same name
            got, expected = f"{type(md).__module__}.{got}", f"attnproof.reference.{expected}"
        raise TypeError(f"{operation}: metadata is {got}, expected {expected}")
    rows = md.num_reqs
    check_int(operation, "num_reqs", rows, 0)
    check_int(operation, "num_actual_tokens", md.num_actual_tokens, 0)
    check_int(operation, "max_query_len", md.max_query_len, 0)
    check_int(operation, "max_seq_len", md.max_seq_len, 0)
    for field, ndim, length in (
        ("query_start_loc", 1, rows + 1),
        ("query_start_loc_cpu", 1, rows + 1),
        ("seq_lens", 1, rows),
        ("seq_lens_cpu", 1, rows),
        ("num_computed_tokens_cpu", 1, rows),
        ("block_table_tensor", 2, rows),
    ):
        tensor = check_tensor(operation, field, getattr(md, field), ndim)
        check_length(operation, field, tensor, length)
        if field.endswith("_cpu"):
            check_cpu(operation, field, tensor)
    check_bool(operation, "causal", md.causal)
    check_slots(operation, md)
    device = md.query_start_loc.device
    for field in ("seq_lens", "block_table_tensor", "slot_mapping"):
        if getattr(md, field).device != device:
            raise MetadataError(operation, field, f"on {getattr(md, field).device}", f"on {device}")


def check_slots(operation: str, metadata: BatchFields) -> None:
    """Require a slot mapping of int64 with a slot for each token."""
    slots = check_tensor(operation, "slot_mapping", metadata.slot_mapping, 1)
    if slots.dtype is not _INT64:
        raise MetadataError(operation, "slot_mapping", f"of dtype {slots.dtype}", "int64")
    if slots.shape[0] < metadata.num_actual_tokens:
        expected = f"at least num_actual_tokens = {metadata.num_actual_tokens}"
        raise MetadataError(operation, "slot_mapping", f"of length {slots.shape[0]}", expected)


def scheduled_tokens(
    operation: str, input_batch: InputBatch, scheduler_output: SchedulerOutput
) -> list[int]:
    """Return the scheduled tokens of each row (MetadataError for an unscheduled request)."""
    scheduled = scheduler_output.num_scheduled_tokens
    for req_id in input_batch.req_ids:
        if req_id not in scheduled:
            expected = f"an entry for request {req_id!r}"
            raise MetadataError(operation, "num_scheduled_tokens", "missing", expected)
    return [scheduled[req_id] for req_id in input_batch.req_ids]


def check_progress(
    operation: str, input_batch: InputBatch
) -> tuple[list[int] | None, list[int] | None]:
    """Return the computed and the prompt tokens of each row, None for what the batch lacks."""
    rows, progress = len(input_batch.req_ids), []
    for field in ("num_computed_tokens_cpu", "num_prompt_tokens"):
        values = getattr(input_batch, field, None)
        if values is not None and len(values) < rows:
            expected = f"at least {rows} entries"
            raise MetadataError(operation, field, f"of length {len(values)}", expected)
        progress.append(None if values is None else [int(value) for value in values[:rows]])
    return progress[0], progress[1]


def check_prefilling(operation: str, metadata: BatchFields) -> torch.Tensor:
    """Return the flags of the rows in their prompt; require them, one a row, on the CPU."""
    flags = getattr(metadata, "is_prefilling", None)
    if not isinstance(flags, torch.Tensor):
        expected = "a flag a row, to tell short extends from decodes"
        raise MetadataError(operation, "is_prefilling", flags, expected)
    if flags.shape != (metadata.num_reqs,) or flags.dtype is not torch.bool:
        got = f"of shape {tuple(flags.shape)} and dtype {flags.dtype}"
        raise MetadataError(operation, "is_prefilling", got, f"bool, ({metadata.num_reqs},)")
    check_cpu(operation, "is_prefilling", flags)
    return flags


def check_ubatch(operation: str, value: object) -> tuple[slice, slice]:
    """Return the request slice and the token slice of an object that has both (TypeError)."""
    try:
        return value.request_slice, value.token_slice  # type: ignore[attr-defined]
    except AttributeError:
        got = type(value).__name__
        raise TypeError(f"{operation}: ubatch_slice is {got}, expected UBatchSlice") from None


def check_slice(operation: str, field: str, value: slice, length: int) -> tuple[int, int]:
    """Return start and stop of a slice; require it non-empty, with step 1, within `length`."""
    if not isinstance(value, slice):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected slice")
    start, stop = value.start, value.stop
    if type(start) is not int or type(stop) is not int:
        raise TypeError(f"{operation}: {field} is {value}, expected a slice of two ints")
    if value.step not in (None, 1) or not 0 <= start < stop <= length:
        expected = f"a non-empty slice within 0 to {length}, step 1"
        raise MetadataError(operation, field, f"{start}:{stop}:{value.step or 1}", expected)
    return start, stop


def check_logits(operation: str, metadata: BatchFields) -> None:
    """Require a count with logits indices, at most as large as their number.

    A count without indices is accepted.
    """
    indices, count = metadata.logits_indices_padded, metadata.num_logits_indices
    if count is not None:
        check_int(operation, "num_logits_indices", count, 0)
    # vLLM 0.10 and 0.11 set only the count on every engine step without fast prefill.
    if indices is None:
        return
    check_tensor(operation, "logits_indices_padded", indices, 1)
    if count is None:
        expected = "the number of valid logits indices"
        raise MetadataError(operation, "num_logits_indices", None, expected)
    if count > indices.shape[0]:
        raise MetadataError(operation, "num_logits_indices", count, f"at most {indices.shape[0]}")


def check_rows(operation: str, metadata: BatchFields) -> None:
    """Require one entry a request in the optional per-request fields."""
    plain = metadata.encoder_seq_lens is None and metadata.dcp_local_seq_lens is None
    added = added_fields(type(metadata), BatchFields)
    if plain and not added:
        return
    for field, kind in (("encoder_seq_lens", np.ndarray), ("dcp_local_seq_lens", torch.Tensor)):
        rows = getattr(metadata, field)
        if rows is not None and not isinstance(rows, kind):
            got = type(rows).__name__
            raise TypeError(f"{operation}: {field} is {got}, expected {kind.__name__}")
        if rows is not None and rows.shape != (metadata.num_reqs,):
            got = f"of shape {tuple(rows.shape)}"
            raise MetadataError(operation, field, got, f"shape ({metadata.num_reqs},)")
    if added:
        check_added(operation, metadata)


def check_added(operation: str, metadata: BatchFields) -> None:
    """Require one entry a request, or one a token, in the fields that a subclass declares."""
    for field, alignment in added_fields(type(metadata), BatchFields).items():
        value = getattr(metadata, field)
        if alignment == "batch" or value is None:
            continue
        if alignment == "row keys":
            _check_row_keys(operation, field, value, metadata.num_reqs)
            continue
        if not isinstance(value, torch.Tensor | np.ndarray | list | tuple):
            expected = "a tensor, an array, a list, a tuple or None"
            raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected {expected}")
        if not isinstance(value, list | tuple) and not value.ndim:
            raise MetadataError(operation, field, "of shape ()", "at least 1-D")
        if alignment == "request" and len(value) != metadata.num_reqs:
            expected = f"length {metadata.num_reqs}"
            raise MetadataError(operation, field, f"of length {len(value)}", expected)
        if len(value) < metadata.num_actual_tokens and alignment == "token":
            expected = f"at least num_actual_tokens = {metadata.num_actual_tokens}"
            raise MetadataError(operation, field, f"of length {len(value)}", expected)
        if isinstance(value, torch.Tensor) and not value.is_cpu:
            check_device(operation, field, value, metadata.query_start_loc.device)


def _check_row_keys(operation: str, field: str, value: object, num_reqs: int) -> None:
    if not isinstance(value, dict):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected a dict or None")
    for row in value:
        if type(row) is not int or not 0 <= row < num_reqs:
            raise MetadataError(operation, field, f"for row {row!r}", f"rows below {num_reqs}")


def check_queries(operation: str, metadata: BatchFields) -> None:
    """Require valid offsets, enough tokens for them and a bound of the queries (CPU mirrors)."""
    md = metadata
    check_offsets(operation, "query_start_loc_cpu", md.query_start_loc_cpu)
    offsets = md.query_start_loc_cpu.tolist()
    if offsets[-1] > md.num_actual_tokens:
        expected = f"at least query_start_loc's end {offsets[-1]}"
        raise MetadataError(operation, "num_actual_tokens", md.num_actual_tokens, expected)
    longest = max((end - start for start, end in pairwise(offsets)), default=0)
    if md.max_query_len < longest:
        raise MetadataError(operation, "max_query_len", md.max_query_len, f"at least {longest}")


def check_sequences(operation: str, metadata: BatchFields) -> None:
    """Require `c == s - q >= 0` in every row and a bound of the sequences (CPU mirrors)."""
    md = metadata
    offsets, seq_lens = md.query_start_loc_cpu.tolist(), md.seq_lens_cpu.tolist()
    for row, computed in enumerate(md.num_computed_tokens_cpu.tolist()):
        query_len = offsets[row + 1] - offsets[row]
        if seq_lens[row] < query_len:
            expected = f"at least the query length {query_len}"
            raise MetadataError(operation, f"seq_lens_cpu[{row}]", seq_lens[row], expected)
        if computed != seq_lens[row] - query_len:
            expected = f"seq_len - query_len = {seq_lens[row] - query_len}"
            raise MetadataError(operation, f"num_computed_tokens_cpu[{row}]", computed, expected)
    longest = max(seq_lens, default=0)
    if md.max_seq_len < longest:
        raise MetadataError(operation, "max_seq_len", md.max_seq_len, f"at least {longest}")


def check_span(operation: str, offsets: list[int], r0: int, r1: int, t0: int, t1: int) -> None:
    """Require tokens [t0, t1) to start in request r0 and to stop in request r1 - 1.

    `offsets` is the query_start_loc of the batch. Tokens at or beyond the last offset are
    graph padding: they belong to the last request that has tokens and to the padded
    rows after it.
    """
    total = offsets[-1]
    if not (offsets[r0] <= t0 < offsets[r0 + 1] or t0 >= total == offsets[r0 + 1]):
        expected = f"a start in [{offsets[r0]}, {offsets[r0 + 1]}), the tokens of request {r0}"
        raise MetadataError(operation, "token_slice", f"{t0}:{t1}", expected)
    if not (offsets[r1 - 1] < t1 <= offsets[r1] or t1 >= total == offsets[r1]):
        last = r1 - 1
        expected = f"a stop in ({offsets[last]}, {offsets[r1]}], the tokens of request {last}"
        raise MetadataError(operation, "token_slice", f"{t0}:{t1}", expected)


def check_device(operation: str, field: str, tensor: torch.Tensor, device: torch.device) -> None:
    """Require `tensor` on `device`."""
    if tensor.device != device:
        raise MetadataError(operation, field, f"on {tensor.device}", f"on {device}")


def check_tables(operation: str, block_tables: object) -> None:
    """Require a mapping of block tables, or None."""
    if block_tables is not None and not isinstance(block_tables, Mapping):
        got = type(block_tables).__name__
        raise TypeError(f"{operation}: block_tables is {got}, expected a dict or None")


def check_list(operation: str, field: str, value: object) -> None:
    """Require a list, to which results are appended."""
    if not isinstance(value, list):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected list")
