"""A backend to copy: five operations of SPEC.md in plain torch, without loops over requests.

Verify it with `attnproof verify --candidate examples/correct_backend.py`. A backend is
any Python file, module or package with functions that have the operations' names; a missing
operation is "not offered", which is no failure. See docs/candidates.md.

Malformed input must raise `MetadataError` (or another `ValueError`) before anything is
written (SPEC.md rule 0.6). `attnproof.reference.checks.common` has functions for that: they
read shapes, dtypes, devices, scalars and CPU mirrors, and never synchronise.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attnproof.reference.checks.common import (
    check_bool,
    check_common_metadata,
    check_int,
    check_logits,
    check_queries,
    check_rows,
    check_sequences,
    check_slice,
    check_span,
    check_tensor,
    check_ubatch,
)
from attnproof.reference.definition.checking import check_arguments
from attnproof.reference.interface import PAD_SLOT_ID, MetadataError, UBatchSlice
from attnproof.reference.interface.fields import alignments
from attnproof.reference.shared import CommonAttentionMetadata


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
) -> tuple[int, int, int, int]:
    """Count decodes and prefills, and the tokens of both; SPEC.md section 2."""
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
        # Rows of length 0 at the end are graph padding: the batch stays uniform.
        padding = query_lens.flip(0).cumsum(0).flip(0) == 0
        decode = (query_lens[0] <= decode_threshold) & ((query_lens == query_lens[0]) | padding)
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


def slice_query_start_locs(query_start_loc: torch.Tensor, request_slice: slice) -> torch.Tensor:
    """Return the offsets of the requests in the slice, rebased to 0; SPEC.md section 3."""
    operation = "slice_query_start_locs"
    check_tensor(operation, "query_start_loc", query_start_loc, 1)
    start, stop = check_slice(
        operation, "request_slice", request_slice, query_start_loc.shape[0] - 1
    )
    return query_start_loc[start : stop + 1] - query_start_loc[start]


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Return one micro-batch as a batch of its own; SPEC.md section 3."""
    operation, md = "_make_metadata_with_slice", attn_metadata
    _check_parent(operation, md)
    requests, tokens = check_ubatch(operation, ubatch_slice)
    r0, r1 = check_slice(operation, "request_slice", requests, md.num_reqs)
    t0, t1 = check_slice(operation, "token_slice", tokens, md.num_actual_tokens)
    check_span(operation, md.query_start_loc_cpu.tolist(), r0, r1, t0, t1)
    rows, offsets = slice(r0, r1), slice(r0, r1 + 1)
    starts = md.query_start_loc_cpu[offsets]
    if md.dcp_local_seq_lens is not None and int(starts[-1]) > t1:
        expected = "None, or no request cut at its end"
        raise MetadataError(operation, "dcp_local_seq_lens", "set", expected)

    seq_lens_cpu = md.seq_lens_cpu[rows] - (starts[1:] - t1).clamp(min=0)
    ends_on_device = md.query_start_loc[offsets][1:]
    in_earlier_slices = (starts[1:].clamp(max=t0) - starts[:-1]).clamp(min=0)
    own_starts = starts.clamp(t0, t1) - t0
    # Fields that a subclass or a later version adds declare their alignment too.
    cuts = {"request": rows, "token": slice(t0, t1)}
    moved = {
        field: getattr(md, field)[cuts[alignment]]
        for field, (alignment, _) in alignments(type(md)).items()
        if alignment in cuts and getattr(md, field) is not None
    }
    changed = {
        "query_start_loc": md.query_start_loc[offsets].clamp(t0, t1) - t0,
        "query_start_loc_cpu": own_starts,
        "seq_lens": (md.seq_lens[rows] - (ends_on_device - t1).clamp(min=0)).to(md.seq_lens.dtype),
        "seq_lens_cpu": seq_lens_cpu.to(md.seq_lens_cpu.dtype),
        "num_computed_tokens_cpu": (md.num_computed_tokens_cpu[rows] + in_earlier_slices).to(
            md.num_computed_tokens_cpu.dtype
        ),
        "num_reqs": r1 - r0,
        "num_actual_tokens": t1 - t0,
        "max_query_len": int(own_starts.diff().max()) or md.max_query_len,
        "max_seq_len": int(seq_lens_cpu.max()),
    }
    child = replace(md, **moved | changed)
    child.num_logits_indices = None  # a count alone cannot be divided
    if md.logits_indices_padded is not None:
        indices = md.logits_indices_padded[: md.num_logits_indices]
        child.logits_indices_padded = indices[(indices >= t0) & (indices < t1)] - t0
        child.num_logits_indices = child.logits_indices_padded.shape[0]
    return child


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice], common_attn_metadata: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """Return one child batch a slice, in order; SPEC.md section 3."""
    _check_parent("split_attn_metadata", common_attn_metadata)
    return [_make_metadata_with_slice(ubatch, common_attn_metadata) for ubatch in ubatch_slices]


def _check_parent(operation: str, md: CommonAttentionMetadata) -> None:
    check_common_metadata(operation, md)
    check_queries(operation, md)
    check_sequences(operation, md)
    check_logits(operation, md)
    check_rows(operation, md)


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
    """Return the cache slot of every token of a batch; SPEC.md section 5."""
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
    block = block_table[owner[kept], column[kept]].long()  # 64 bits before the product
    out[token[kept]] = block * block_size + position[kept] % block_size
    return out if num_padded_tokens is None else out[:num_padded_tokens]
