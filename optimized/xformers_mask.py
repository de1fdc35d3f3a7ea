"""Make xformers' paged mask of the decodes from the tensors of a batch (SPEC.md section 8)."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

import torch

from attnproof.reference.shared import CommonAttentionMetadata

from .host import xformers_mask as loops

_INT32_MAX: Final = 2**31 - 1
_INT32S: Final = torch.empty(0, dtype=torch.int32)


def decode_mask(md: CommonAttentionMetadata, rows: int, block_size: int) -> Any | None:
    """Return the mask of the first `rows` requests, each with at most one query.

    Its lists come from the CPU mirrors, its tensors are those of the batch (in int32), so on
    a device nothing is copied from pageable memory and nothing synchronises. Return None
    without xformers, and if `rows` times the room of a row (columns times `block_size`)
    exceeds int32: xformers' offsets would overflow.
    """
    room = md.block_table_tensor.shape[1] * block_size
    if rows * room > _INT32_MAX or not installed():
        return None
    mask, lengths, padded_lengths = _classes()
    starts: list[int] = md.query_start_loc_cpu.tolist()[: rows + 1]
    seq_lens: list[int] = md.seq_lens_cpu.tolist()[:rows]
    seqlen = _int32(_first(md.seq_lens, rows))
    return mask(
        lengths(
            seqstart=_int32(_first(md.query_start_loc, rows + 1)),
            max_seqlen=int(starts[rows] > 0),
            min_seqlen=int(starts[rows] == rows),
            seqstart_py=starts,
        ),
        padded_lengths(
            seqstart=_rooms(rows, room, seqlen.device),
            max_seqlen=max(seq_lens),
            min_seqlen=min(seq_lens),
            seqstart_py=list(range(0, rows * room + 1, room)) if room else [0] * (rows + 1),
            seqlen=seqlen,
            seqlen_py=seq_lens,
            padding=room,
        ),
        _first(md.block_table_tensor, rows),
        block_size,
    )


def _first(tensor: torch.Tensor, length: int) -> torch.Tensor:
    """Return the first `length` entries."""
    # A comparison of the length is cheaper than a view.
    return tensor if tensor.shape[0] == length else tensor[:length]


@lru_cache(maxsize=1)
def installed() -> bool:
    """True if xformers can be imported."""
    return find_spec("xformers") is not None


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any, Any]:
    """Return the classes of the mask, of its query lengths and of its key lengths."""
    # The mask's `from_seqlens` is not used: it copies lists to the device. The import is here
    # because it takes more than a second.
    from xformers.ops.fmha import attn_bias

    return (
        attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask,
        attn_bias._SeqLenInfo,
        attn_bias._PaddedSeqLenInfo,
    )


def _int32(values: torch.Tensor) -> torch.Tensor:
    """Return the values as int32 with a stride of 1, the argument itself if it is that."""
    # xformers asserts a stride of 1 for a tensor of one entry too.
    if values.dtype is not torch.int32:
        values = values.to(torch.int32)
    if values.stride(0) != 1:
        values = values.clone(memory_format=torch.contiguous_format)
    return values


def _rooms(rows: int, room: int, device: torch.device) -> torch.Tensor:
    """Return the key offsets of the rows: `rows` + 1 multiples of `room`, which may be 0."""
    if device.type != "cpu":
        return torch.arange(rows + 1, dtype=torch.int32, device=device).mul_(room)
    rooms = _INT32S.new_empty(rows + 1)
    loops.fill_multiples(rows + 1, room, rooms.data_ptr())
    return rooms
