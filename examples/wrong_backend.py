"""A backend with four bugs, to demonstrate the findings of attnproof.

Each bug has shipped in a serving engine, and each passes a test of the usual case.
`attnproof verify --candidate examples/wrong_backend.py` must find all four; comments marked
WRONG are at the bugs. The checks of malformed input are correct, see correct_backend.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from attnproof.reference.checks.common import (
    check_bool,
    check_common_metadata,
    check_int,
    check_list,
    check_logits,
    check_queries,
    check_rows,
    check_sequences,
    check_slice,
    check_span,
    check_ubatch,
)
from attnproof.reference.checks.slots import check_blocks, check_range
from attnproof.reference.definition.checking import check_arguments
from attnproof.reference.interface import PAD_SLOT_ID, UBatchSlice
from attnproof.reference.interface.fields import alignments
from attnproof.reference.shared import CommonAttentionMetadata

_TILE = 32


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
) -> tuple[int, int, int, int]:
    """Wrong for a uniform batch with graph padding, such as q = [2, 2, 2, 0]."""
    operation, md = "split_decodes_and_prefills", common_attn_metadata
    check_common_metadata(operation, md)
    check_int(operation, "decode_threshold", decode_threshold, 1)
    check_bool(operation, "require_uniform", require_uniform)
    check_queries(operation, md)
    if not md.num_reqs:
        return (0, 0, 0, 0)
    if md.max_query_len <= decode_threshold and (not require_uniform or decode_threshold == 1):
        return (md.num_reqs, 0, md.num_actual_tokens, 0)
    query_lens = md.query_start_loc_cpu.diff()
    decode = query_lens <= decode_threshold
    if require_uniform:
        # WRONG: the length 0 of padded rows is not the length of the first request. They
        # and the padded tokens count as prefills, so the captured graph is not used.
        decode &= query_lens == query_lens[0]
    num_decodes = int(decode.cumprod(0).sum())
    num_decode_tokens = int(md.query_start_loc_cpu[num_decodes])
    if num_decodes == md.num_reqs:
        num_decode_tokens = md.num_actual_tokens
    return (
        num_decodes,
        md.num_reqs - num_decodes,
        num_decode_tokens,
        md.num_actual_tokens - num_decode_tokens,
    )


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Wrong for a slice that starts inside a request."""
    operation, md = "_make_metadata_with_slice", attn_metadata
    check_common_metadata(operation, md)
    check_queries(operation, md)
    check_sequences(operation, md)
    check_logits(operation, md)
    check_rows(operation, md)
    requests, tokens = check_ubatch(operation, ubatch_slice)
    r0, r1 = check_slice(operation, "request_slice", requests, md.num_reqs)
    t0, t1 = check_slice(operation, "token_slice", tokens, md.num_actual_tokens)
    check_span(operation, md.query_start_loc_cpu.tolist(), r0, r1, t0, t1)
    rows, ends = slice(r0, r1), slice(r0 + 1, r1 + 1)
    if md.dcp_local_seq_lens is not None and int(md.query_start_loc_cpu[r1]) > t1:
        raise ValueError(f"{operation}: dcp_local_seq_lens is set, expected no request cut")

    starts = md.query_start_loc_cpu[r0 : r1 + 1].clamp(t0, t1) - t0
    seq_lens = md.seq_lens_cpu[rows] - (md.query_start_loc_cpu[ends] - t1).clamp(min=0)
    child = replace(
        md,
        query_start_loc=starts.to(md.query_start_loc.device, copy=True),
        query_start_loc_cpu=starts,
        seq_lens=seq_lens.to(md.seq_lens, copy=True),
        seq_lens_cpu=seq_lens.to(md.seq_lens_cpu.dtype),
        # WRONG: a request that started in an earlier slice has computed that slice's tokens
        # too. The kernel gives its queries positions that are too small.
        num_computed_tokens_cpu=md.num_computed_tokens_cpu[rows].clone(),
        num_reqs=r1 - r0,
        num_actual_tokens=t1 - t0,
        max_query_len=int(starts.diff().max()) or md.max_query_len,
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=md.block_table_tensor[rows],
        slot_mapping=md.slot_mapping[t0:t1],
    )
    cuts = {"request": rows, "token": slice(t0, t1)}
    for field, (alignment, _) in alignments(type(md)).items():
        value = getattr(child, field)
        if alignment in cuts and value is not None and value is getattr(md, field):
            setattr(child, field, value[cuts[alignment]])
    child.num_logits_indices = None  # a count alone cannot be divided
    if md.logits_indices_padded is not None:
        indices = md.logits_indices_padded[: md.num_logits_indices]
        child.logits_indices_padded = indices[(indices >= t0) & (indices < t1)] - t0
        child.num_logits_indices = child.logits_indices_padded.shape[0]
    return child


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    *,
    num_padded_tokens: int | None = None,
    start_idx: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Wrong for caches of 2**31 slots and more."""
    check_arguments("build_slot_mapping", (), locals())
    device, starts = query_start_loc.device, query_start_loc.long()
    tokens = int(starts[-1])
    requests = torch.arange(starts.shape[0] - 1, device=device)
    owner = requests.repeat_interleave(starts.diff(), output_size=tokens)
    token = torch.arange(tokens, device=device)
    position = num_computed_tokens.long()[owner] + token - starts[owner]
    column = position // block_size
    kept = column < block_table.shape[1]
    if start_idx is not None:
        kept &= position >= start_idx.long()[owner]

    if out is None:
        length = tokens if num_padded_tokens is None else num_padded_tokens
        out = torch.empty(length, dtype=torch.int64, device=device)
    out.fill_(PAD_SLOT_ID)
    # WRONG: ids are int32, so the product is int32 too and overflows.
    first_slot = block_table[owner[kept], column[kept]] * block_size
    out[token[kept]] = first_slot + position[kept] % block_size
    return out if num_padded_tokens is None else out[:num_padded_tokens]


def _compute_slot_mapping_numpy(
    slot_mapping: list[int],
    block_table: Sequence[int],
    range_start: int,
    range_end: int,
    block_size: int,
) -> None:
    """Wrong for more tokens than one tile holds."""
    check_list("_compute_slot_mapping_numpy", "slot_mapping", slot_mapping)
    check_range("_compute_slot_mapping_numpy", block_table, range_start, range_end, block_size)
    check_blocks(
        "_compute_slot_mapping_numpy",
        "block_table",
        block_table,
        range_start,
        range_end,
        block_size,
    )
    blocks = torch.tensor(block_table, dtype=torch.int64)
    for tile_start in range(range_start, range_end, _TILE):
        count = min(_TILE, range_end - tile_start)
        # WRONG: should start at tile_start; every tile repeats the slots of the first.
        positions = torch.arange(range_start, range_start + count)
        slots = blocks[positions // block_size] * block_size + positions % block_size
        slot_mapping.extend(slots.tolist())
