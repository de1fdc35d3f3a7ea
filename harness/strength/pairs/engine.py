"""A backend written as engines write theirs: tensor operations, and no checks of its input.

It is the "after" of every pair of these functions, and the code that the bugs are put into. It
shares no code with `reference` and `optimized`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from attnproof.reference.interface import PAD_SLOT_ID, PerLayerParameters, UBatchSlice
from attnproof.reference.interface.fields import alignments
from attnproof.reference.shared import CommonAttentionMetadata


def split_decodes_and_prefills(
    common_attn_metadata: CommonAttentionMetadata,
    decode_threshold: int = 1,
    require_uniform: bool = False,
    treat_short_extends_as_decodes: bool = True,
) -> tuple[int, int, int, int]:
    """Count the leading decodes, the requests after them, and the tokens of both (section 2)."""
    md = common_attn_metadata
    if not md.num_reqs:
        return (0, 0, 0, 0)
    lengths = md.query_start_loc_cpu.diff()
    prefills = lengths > decode_threshold
    if require_uniform and (decode_threshold > 1 or md.max_query_len > 1):
        prefills = prefills | (lengths != lengths[0])
        if not bool(prefills[0]) and not bool(lengths[prefills].any()):
            prefills = torch.zeros_like(prefills)  # padded rows behind a uniform batch
    if not treat_short_extends_as_decodes:
        prefills = prefills | md.is_prefilling[: md.num_reqs].bool()  # type: ignore[attr-defined]
    decodes = int(prefills.int().argmax()) if bool(prefills.any()) else md.num_reqs
    tokens = int(md.query_start_loc_cpu[decodes])
    if decodes == md.num_reqs:
        tokens = md.num_actual_tokens
    return (decodes, md.num_reqs - decodes, tokens, md.num_actual_tokens - tokens)


def _make_metadata_with_slice(
    ubatch_slice: UBatchSlice, attn_metadata: CommonAttentionMetadata
) -> CommonAttentionMetadata:
    """Return the part of a batch within a slice as a batch of its own (section 3)."""
    md, rows, tokens = attn_metadata, ubatch_slice.request_slice, ubatch_slice.token_slice
    offsets = slice(rows.start, rows.stop + 1)
    starts = md.query_start_loc_cpu[offsets]
    own = starts.clamp(tokens.start, tokens.stop) - tokens.start
    lengths = md.seq_lens_cpu[rows] - (starts[1:] - tokens.stop).clamp(min=0)
    earlier = (starts[1:].clamp(max=tokens.start) - starts[:-1]).clamp(min=0)
    lost = (md.query_start_loc[offsets][1:] - tokens.stop).clamp(min=0)
    taken = {"request": rows, "token": tokens}
    fields: dict[str, Any] = {
        name: getattr(md, name)[taken[alignment]]
        for name, (alignment, _) in alignments(type(md)).items()
        if alignment in taken and getattr(md, name) is not None
    }
    for name, (alignment, _) in alignments(type(md)).items():
        if alignment == "row keys" and getattr(md, name) is not None:
            held = getattr(md, name)
            fields[name] = {r - rows.start: held[r] for r in sorted(held) if r in _range(rows)}
    fields |= {
        "query_start_loc": md.query_start_loc[offsets].clamp(tokens.start, tokens.stop)
        - tokens.start,
        "query_start_loc_cpu": own,
        "seq_lens": (md.seq_lens[rows] - lost).to(md.seq_lens.dtype),
        "seq_lens_cpu": lengths.to(md.seq_lens_cpu.dtype),
        "num_computed_tokens_cpu": (md.num_computed_tokens_cpu[rows] + earlier).to(
            md.num_computed_tokens_cpu.dtype
        ),
        "num_reqs": rows.stop - rows.start,
        "num_actual_tokens": tokens.stop - tokens.start,
        "max_query_len": int(own.diff().max()) or md.max_query_len,
        "max_seq_len": int(lengths.max()),
        "num_logits_indices": None,
    }
    if md.logits_indices_padded is not None:
        sampled = md.logits_indices_padded[: md.num_logits_indices]
        inside = sampled[(sampled >= tokens.start) & (sampled < tokens.stop)] - tokens.start
        fields |= {"logits_indices_padded": inside, "num_logits_indices": len(inside)}
    return replace(md, **fields)


def _range(rows: slice) -> range:
    return range(rows.start, rows.stop)


def make_local_attention_virtual_batches(
    attn_chunk_size: int, common_attn_metadata: CommonAttentionMetadata, block_size: int = 0
) -> CommonAttentionMetadata:
    """Turn each request into a virtual request for each chunk of its query (section 4)."""
    md, chunk, pages = common_attn_metadata, attn_chunk_size, attn_chunk_size // block_size
    ends, queries = md.seq_lens_cpu.long(), md.query_start_loc_cpu.long().diff()
    first = torch.where(queries > 0, (ends - queries) // chunk, (ends - 1).clamp(min=0) // chunk)
    count = (ends - 1).clamp(min=0) // chunk - first + 1
    total = int(count.sum())
    owner = torch.arange(md.num_reqs).repeat_interleave(count, output_size=total)
    place = torch.arange(total) - (count.cumsum(0) - count)[owner]
    begin = (first[owner] + place) * chunk
    lengths = torch.minimum(ends[owner], begin + chunk) - begin
    query_start = torch.maximum((ends - queries)[owner], begin)
    lens = torch.minimum(queries[owner], begin + lengths - query_start).clamp(min=0)
    starts = torch.nn.functional.pad(lens.cumsum(0), (1, 0))
    columns = (begin // block_size)[:, None] + torch.arange(pages)
    columns = columns.clamp(max=md.block_table_tensor.shape[1] - 1)
    device = md.block_table_tensor.device
    repeated = {
        name: _taken(getattr(md, name), owner)
        for name, (alignment, _) in alignments(type(md)).items()
        if alignment in ("request", "row keys") and getattr(md, name) is not None
    }
    return replace(
        md,
        **repeated
        | {
            "query_start_loc": starts.to(md.query_start_loc),
            "query_start_loc_cpu": starts.to(md.query_start_loc_cpu),
            "seq_lens": lengths.to(md.seq_lens),
            "seq_lens_cpu": lengths.to(md.seq_lens_cpu),
            "num_computed_tokens_cpu": (lengths - lens).to(md.num_computed_tokens_cpu),
            "num_reqs": total,
            "max_query_len": int(lens.max()) if total else 0,
            "max_seq_len": int(lengths.max()) if total else 0,
            "block_table_tensor": md.block_table_tensor[
                owner.to(device)[:, None], columns.to(device)
            ],
            "causal": True,
        },
    )


def _taken(value: Any, owner: torch.Tensor) -> Any:
    """Return the entries of the owners of a field with one entry a request."""
    if isinstance(value, dict):
        return {v: value[r] for v, r in enumerate(owner.tolist()) if r in value}
    if isinstance(value, torch.Tensor):
        return value[owner.to(value.device)]
    if isinstance(value, list | tuple):
        return type(value)([value[r] for r in owner.tolist()])
    return value[owner.numpy()]


def make_kv_sharing_fast_prefill_common_attn_metadata(
    common_attn_metadata: CommonAttentionMetadata,
) -> CommonAttentionMetadata:
    """Return the batch reduced to the query tokens whose logits are sampled (section 6)."""
    md = common_attn_metadata
    if md.max_query_len == 1 or md.logits_indices_padded is None:
        return md
    sampled = md.logits_indices_padded[: md.num_logits_indices].cpu().long()
    starts = torch.searchsorted(sampled.sort().values, md.query_start_loc_cpu.long())
    return replace(
        md,
        query_start_loc=starts.to(md.query_start_loc),
        query_start_loc_cpu=starts.to(md.query_start_loc_cpu),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(starts.diff().max()) if md.num_reqs else 0,
        causal=True,
    )


def compute_causal_conv1d_metadata(
    query_start_loc_p: torch.Tensor,
) -> tuple[dict[int, dict[str, Any]], torch.Tensor, torch.Tensor]:
    """Assign a request and eight of its tokens to each program (section 6)."""
    nums = (query_start_loc_p.cpu().diff() + 7) // 8
    total = int(nums.sum())
    request = torch.arange(len(nums)).repeat_interleave(nums.long(), output_size=total)
    within = torch.arange(total) - (nums.long().cumsum(0) - nums)[request]
    pointers = torch.full((2, 2 * max(1024, total)), PAD_SLOT_ID, dtype=torch.int32)
    pointers[0, :total], pointers[1, :total] = request, within
    batch, offset = (pointer.to(query_start_loc_p.device) for pointer in pointers.unbind())
    conv_metadata = {
        "nums": nums,
        "tot": total,
        "mlist": request,
        "mlist_len": total,
        "offsetlist": within.int(),
        "batch_ptr": batch,
        "token_chunk_offset_ptr": offset,
    }
    return {8: conv_metadata}, batch, offset


def infer_global_hyperparameters(
    per_layer_params: Mapping[str, PerLayerParameters],
) -> PerLayerParameters:
    """Return the first layer's hyperparameters with two flags (section 7)."""
    layers = list(per_layer_params.values())
    windows = {layer.window_left for layer in layers}
    alike = [layer == layers[0] for layer in layers]
    return replace(
        layers[0], has_same_window_lefts=len(windows) == 1, has_same_all_params=all(alike)
    )


def split_attn_metadata(
    ubatch_slices: list[UBatchSlice], common_attn_metadata: CommonAttentionMetadata
) -> list[CommonAttentionMetadata]:
    """Return one child batch a slice (section 3)."""
    return [_make_metadata_with_slice(ubatch, common_attn_metadata) for ubatch in ubatch_slices]
