"""Checks of a drafter's inputs (SPEC.md section 14).

No device tensor is read, so no check synchronises.
"""

from __future__ import annotations

import torch

from ..interface.errors import MetadataError
from ..interface.metadata import BatchFields
from .common import check_device, check_int, check_length, check_tensor
from .drafter_batches import check_batch
from .slots import overlap


def check_step(
    positions_1d: torch.Tensor,
    block_table_tensor: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    max_model_len: int,
    out_clamped_positions: torch.Tensor,
    out_slot_mapping: torch.Tensor,
    input_batch_size: int | None,
) -> None:
    """Require valid arguments of `eagle_step_update_slot_mapping_and_metadata`."""
    operation = "eagle_step_update_slot_mapping_and_metadata"
    check_int(operation, "block_size", block_size, 1)
    check_int(operation, "max_model_len", max_model_len, 1)
    rows = check_tensor(operation, "positions_1d", positions_1d, 1).shape[0]
    if input_batch_size is not None:
        check_int(operation, "input_batch_size", input_batch_size, rows)
    device, padded = positions_1d.device, input_batch_size or rows
    for field, tensor, ndim in (
        ("block_table_tensor", block_table_tensor, 2),
        ("seq_lens", seq_lens, 1),
    ):
        check_length(operation, field, check_tensor(operation, field, tensor, ndim), rows)
        check_device(operation, field, tensor, device)
    check_room(operation, "out_clamped_positions", out_clamped_positions, rows, device)
    check_room(operation, "out_slot_mapping", out_slot_mapping, padded, device, torch.int64)
    in_place = _is_same_memory(positions_1d, out_clamped_positions)
    check_apart(
        operation,
        {
            "seq_lens": seq_lens,
            "out_clamped_positions": out_clamped_positions,
            "out_slot_mapping": out_slot_mapping,
        },
        {"block_table_tensor": block_table_tensor}
        | ({} if in_place else {"positions_1d": positions_1d}),
    )
    if positions_1d.is_cpu:
        check_least(operation, "positions_1d", positions_1d, 0)
        check_least(operation, "seq_lens", seq_lens, 0)


def check_next_tokens(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    vocab_size: int,
) -> None:
    """Require valid arguments of `prepare_next_token_ids_padded`."""
    operation = "prepare_next_token_ids_padded"
    check_int(operation, "vocab_size", vocab_size, 1)
    sampled = check_tensor(operation, "sampled_token_ids", sampled_token_ids, 2)
    rows = (sampled.shape[0], sampled.device)
    check_room(operation, "discard_request_mask", discard_request_mask, *rows, torch.bool)
    check_room(operation, "backup_next_token_ids", backup_next_token_ids, *rows, torch.int32)
    if sampled.is_cpu:
        check_least(operation, "sampled_token_ids", sampled.flatten(), -1)


def check_new_slots(
    cad: BatchFields,
    new_positions: torch.Tensor,
    is_rejected_token_mask: torch.Tensor,
    block_size: int,
    num_new_tokens: int,
    max_model_len: int,
) -> None:
    """Require valid arguments of `compute_new_slot_mapping`."""
    operation = "compute_new_slot_mapping"
    check_batch(operation, cad)
    check_int(operation, "block_size", block_size, 1)
    check_int(operation, "num_new_tokens", num_new_tokens, 0)
    check_int(operation, "max_model_len", max_model_len, 1)
    tokens = cad.num_actual_tokens + cad.num_reqs * num_new_tokens
    check_tensor(operation, "new_positions", new_positions, 1)
    check_dtype(operation, "is_rejected_token_mask", is_rejected_token_mask, torch.bool)
    for field, tensor in (
        ("new_positions", new_positions),
        ("is_rejected_token_mask", is_rejected_token_mask),
    ):
        check_length(operation, field, tensor, tokens)
        check_device(operation, field, tensor, cad.query_start_loc.device)
    if new_positions.is_cpu:
        check_least(operation, "new_positions", new_positions, 0)


def check_room(
    operation: str,
    field: str,
    out: torch.Tensor,
    length: int,
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> None:
    """Require a 1-D tensor of at least `length` entries, integers unless a dtype is given."""
    if dtype is None:
        check_tensor(operation, field, out, 1)
    else:
        check_dtype(operation, field, out, dtype)
    check_device(operation, field, out, device)
    if out.shape[0] < length:
        raise MetadataError(operation, field, f"of length {out.shape[0]}", f"at least {length}")


def check_dtype(operation: str, field: str, value: object, dtype: torch.dtype) -> None:
    """Require a 1-D tensor of `dtype`."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(value).__name__}, expected torch.Tensor")
    if value.ndim != 1:
        raise MetadataError(operation, field, f"of shape {tuple(value.shape)}", "1-D")
    if value.dtype is not dtype:
        expected = str(dtype).removeprefix("torch.")
        raise MetadataError(operation, field, f"of dtype {value.dtype}", expected)


def check_apart(
    operation: str, outputs: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor]
) -> None:
    """Require outputs that overlap neither an input nor an earlier output."""
    before = dict(inputs)
    for field, out in outputs.items():
        for other, tensor in before.items():
            if overlap(tensor, out):
                raise MetadataError(operation, field, f"in the memory of {other}", "memory apart")
        before[field] = out


def check_least(operation: str, field: str, tensor: torch.Tensor, minimum: int) -> None:
    """Require values of at least `minimum` in a CPU tensor."""
    for index, value in enumerate(tensor.tolist()):
        if value < minimum:
            raise MetadataError(operation, f"{field}[{index}]", value, f"at least {minimum}")


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if the first elements of `other` are those of `one`."""
    same = one.data_ptr() == other.data_ptr() and one.device == other.device
    return same and one.dtype is other.dtype and one.stride() == other.stride()
