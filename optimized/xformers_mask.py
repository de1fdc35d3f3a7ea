"""xformers' paged mask of the decodes, made of what a batch already has (SPEC.md section 8)."""

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
    """The mask of the first `rows` requests, each with at most one query; None without xformers.

    Its lists come from the CPU mirrors, its tensors are the batch's own (in int32), so on a
    device nothing is copied from pageable memory and nothing synchronises. None too if a row's
    room (columns times `block_size`) times `rows` is no int32: xformers' offsets would wrap.
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
    """Its first entries: itself if that is all of them, as a view costs more than looking."""
    return tensor if tensor.shape[0] == length else tensor[:length]


@lru_cache(maxsize=1)
def installed() -> bool:
    """Whether there is an xformers to import."""
    return find_spec("xformers") is not None


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any, Any]:
    """The mask, and the records of query and key lengths that it consists of.

    Its own constructor, `from_seqlens`, copies lists to the device. Imported when a mask is
    first made: that takes more than a second.
    """
    from xformers.ops.fmha import attn_bias

    return (
        attn_bias.PagedBlockDiagonalCausalWithOffsetPaddedKeysMask,
        attn_bias._SeqLenInfo,
        attn_bias._PaddedSeqLenInfo,
    )


def _int32(values: torch.Tensor) -> torch.Tensor:
    """With a stride of 1, which xformers asserts of one entry too; mostly the tensor itself."""
    if values.dtype is not torch.int32:
        values = values.to(torch.int32)
    if values.stride(0) != 1:
        values = values.clone(memory_format=torch.contiguous_format)
    return values


def _rooms(rows: int, room: int, device: torch.device) -> torch.Tensor:
    """Where each row's room begins, and the end: multiples of `room`, which may be 0."""
    if device.type != "cpu":
        if not room:
            return torch.zeros(rows + 1, dtype=torch.int32, device=device)
        return torch.arange(0, rows * room + 1, room, dtype=torch.int32, device=device)
    rooms = _INT32S.new_empty(rows + 1)
    loops.fill_multiples(rows + 1, room, rooms.data_ptr())
    return rooms
