"""The pool of requests' slots, `req_to_token` of SGLang (SPEC.md section 15)."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import torch

from .checking import check_call, checks
from .dispatch import lazily, on_device, staging, upload
from .host import token_pool as loops
from .host.vectors import vector

__all__ = [
    "compute_position",
    "get_last_loc",
    "write_req_to_token_pool",
]

if TYPE_CHECKING:
    from .kernels.last_slots import read_last_slots
    from .kernels.positions import write_positions
    from .kernels.token_pool import write_token_rows
else:
    read_last_slots = lazily("last_slots.read_last_slots")
    write_positions = lazily("positions.write_positions")
    write_token_rows = lazily("token_pool.write_token_rows")

_checked = checks.follow(globals())
_INT64 = torch.int64
_IS_CONTIGUOUS, _DATA_PTR = torch.Tensor.is_contiguous, torch.Tensor.data_ptr


def get_last_loc(
    req_to_token: torch.Tensor,
    req_pool_indices_tensor: torch.Tensor,
    prefix_lens_tensor: torch.Tensor,
) -> torch.Tensor:
    """Return the slot of the last token of each prefix, -1 for an empty prefix.

    Result and errors as in `reference`. On a device one kernel, no sync. SPEC.md section 15.
    """
    if _checked:
        check_call("get_last_loc", req_to_token, req_pool_indices_tensor, prefix_lens_tensor)
    rows, lengths = req_pool_indices_tensor, prefix_lens_tensor
    wide = req_to_token.dtype is _INT64 or lengths.dtype is _INT64
    dtype = _INT64 if wide else torch.int32
    out = torch.empty(lengths.shape[0], dtype=dtype, device=lengths.device)
    if on_device(out):
        read_last_slots(req_to_token, rows, lengths, out)
    else:
        vectors = *_table(req_to_token), *vector(rows), *vector(lengths)
        loops.last_slots(lengths.shape[0], *vectors, out.data_ptr(), wide)
    return out


def write_req_to_token_pool(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    prefix_tensors: list[torch.Tensor],
    pre_lens: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> None:
    """Write the slots of each request's prefix, then of its new tokens, to its row of the pool.

    Result and errors as in `reference`. On a device: one asynchronous copy of the prefixes'
    addresses, one kernel, no sync; a prefix with gaps is copied first. SPEC.md section 15.
    """
    if _checked:
        check_call("write_req_to_token_pool", **locals())
    rows, device = len(prefix_tensors), req_to_token.device
    dense = prefix_tensors
    if not all(map(_IS_CONTIGUOUS, dense)):
        dense = [prefix.contiguous() for prefix in dense]
    prefixes = staging(rows, _INT64, device)
    struct.pack_into(f"{rows}q", prefixes.numpy().data, 0, *map(_DATA_PTR, dense))
    if on_device(req_to_token):
        row_inputs = upload(prefixes, device), pre_lens, seq_lens, out_cache_loc
        write_token_rows(req_to_token, req_pool_indices, *row_inputs)
        return
    pool = *_table(req_to_token), *vector(req_pool_indices)
    lengths = *vector(pre_lens), *vector(seq_lens)
    new = out_cache_loc.data_ptr(), out_cache_loc.stride(0)
    loops.write_rows(rows, *pool, prefixes.data_ptr(), *lengths, *new)


def compute_position(
    extend_prefix_lens: torch.Tensor, extend_seq_lens: torch.Tensor, extend_seq_lens_sum: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the position of each new token, and the index of each request's first one.

    Results and errors as in `reference`. On a device one kernel, no sync. SPEC.md section 15.
    """
    if _checked:
        arguments = extend_prefix_lens, extend_seq_lens, extend_seq_lens_sum
        check_call("compute_position", *arguments)
    rows, device = extend_seq_lens.shape[0], extend_seq_lens.device
    positions = torch.empty(extend_seq_lens_sum, dtype=_INT64, device=device)
    starts = torch.empty(rows, dtype=torch.int32, device=device)
    prefixed = extend_prefix_lens.shape[0] > 0
    if on_device(positions):
        prefix_lens = extend_prefix_lens if prefixed else None
        write_positions(prefix_lens, extend_seq_lens, positions, starts)
    else:
        lengths = *vector(extend_prefix_lens), *vector(extend_seq_lens)
        outputs = extend_seq_lens_sum, positions.data_ptr(), starts.data_ptr()
        loops.fill_positions(rows, prefixed, *lengths, *outputs)
    return positions, starts


def _table(tensor: torch.Tensor) -> tuple[int, int, int, bool]:
    """Return address, strides in elements, and whether the table is int64."""
    row_stride, column_stride = tensor.stride()
    return tensor.data_ptr(), row_stride, column_stride, tensor.dtype is _INT64
