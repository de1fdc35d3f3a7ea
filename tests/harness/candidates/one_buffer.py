"""Keeps results: in buffers that every call returns, and in a cache with too small a key."""

from itertools import count

import torch

from attnproof import reference

_SLOTS = torch.full((1 << 16,), -1, dtype=torch.int64)
_BY_COUNT = {}
_BY_LENGTHS = {}
_BY_TENSOR = {}
_BY_DICT = {}
_TURNS, _CALLS = [torch.empty(1 << 16, dtype=torch.int64) for _ in range(3)], count()


def build_slot_mapping(*args, **kwargs):
    """Write the slots to one buffer for all calls."""
    made = reference.build_slot_mapping(*args, **kwargs)
    if kwargs.get("out") is not None or len(made) > len(_SLOTS):
        return made
    _SLOTS[: len(made)] = made
    return _SLOTS[: len(made)]


def slice_query_start_locs(query_start_loc, request_slice):
    """Write the offsets to one buffer for each number of requests and dtype, unless it has them."""
    made = reference.slice_query_start_locs(query_start_loc, request_slice)
    buffer = _BY_COUNT.setdefault((len(made), made.dtype), made)
    return made.clone() if torch.equal(buffer, made) else buffer.copy_(made)


def split_decodes_and_prefills(md, *args, **kwargs):
    """Remember the result for the lengths of the queries, whatever their order is."""
    made = reference.split_decodes_and_prefills(md, *args, **kwargs)
    lengths = sorted(md.query_start_loc_cpu.diff().tolist())
    key = (lengths, md.num_actual_tokens, args, kwargs)
    return _BY_LENGTHS.setdefault(str(key), made)


def compute_mm_prefix_range_tensor(mm_prefix_range, *args):
    """Remember the result for a dict, whatever it holds now."""
    key = (id(mm_prefix_range), str(args))
    if key not in _BY_DICT:
        made = reference.compute_mm_prefix_range_tensor(mm_prefix_range, *args)
        _BY_DICT[key] = made, mm_prefix_range  # which keeps its id
    made = _BY_DICT[key][0]
    return None if made is None else made.clone()


def get_dcp_local_seq_lens(seq_lens, *args, **kwargs):
    """Remember the result for a tensor, whatever it holds now."""
    key = (seq_lens.data_ptr(), seq_lens.shape, str(args), str(kwargs))
    if key not in _BY_TENSOR:
        made = reference.get_dcp_local_seq_lens(seq_lens, *args, **kwargs)
        _BY_TENSOR[key] = made, seq_lens  # which keeps its address
    return _BY_TENSOR[key][0].clone()


def get_dcp_lens(*args, **kwargs):
    """Write the result to one of three buffers in turn."""
    made = reference.get_dcp_lens(*args, **kwargs)
    buffer = _TURNS[next(_CALLS) % 3].view(made.dtype)
    return buffer[: len(made)].copy_(made)
