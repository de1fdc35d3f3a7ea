"""Slots, drafts and page tables of the backend that the pairs are made of; see `engine`."""

from __future__ import annotations

import torch

from attnproof.reference.interface import PAD_SLOT_ID
from attnproof.reference.shared import CommonAttentionMetadata


def build_slot_mapping(
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    *,
    num_padded_tokens: int | None = None,
    start_idx: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    cp_size: int = 1,
    cp_rank: int = 0,
    cp_interleave: int = 1,
) -> torch.Tensor:
    """Return the cache slots of all query tokens of a batch (sections 5 and 10)."""
    offsets = query_start_loc.long()
    tokens = int(offsets[-1])
    owner = torch.arange(len(offsets) - 1).repeat_interleave(offsets.diff(), output_size=tokens)
    position = num_computed_tokens.long()[owner] + torch.arange(tokens) - offsets[owner]
    turn = position // cp_interleave
    local = turn // cp_size * cp_interleave + position % cp_interleave
    column = local // block_size
    kept = (turn % cp_size == cp_rank) & (column < block_table.shape[1])
    if start_idx is not None:
        kept &= position >= start_idx[owner]
    if out is None:
        length = tokens if num_padded_tokens is None else num_padded_tokens
        out = torch.empty(length, dtype=torch.int64, device=query_start_loc.device)
    out.fill_(PAD_SLOT_ID)
    blocks = block_table[owner[kept], column[kept]].long()
    out[:tokens][kept] = blocks * block_size + local[kept] % block_size
    return out if num_padded_tokens is None else out[:num_padded_tokens]


def get_dcp_lens(
    lens: torch.Tensor,
    dcp_size: int,
    dcp_rank: int,
    start: torch.Tensor | None = None,
    interleave_size: int = 1,
) -> torch.Tensor:
    """Return the number of positions of each range that the rank owns (section 15)."""

    def owned(end: torch.Tensor) -> torch.Tensor:
        turn = dcp_size * interleave_size
        rest = end % turn - dcp_rank * interleave_size
        return end // turn * interleave_size + rest.clamp(0, interleave_size)

    first = torch.zeros_like(lens, dtype=torch.int64) if start is None else start.long()
    return (owned(first + lens) - owned(first)).to(lens.dtype)


def eagle_step_update_slot_mapping_and_metadata(
    positions_1d: torch.Tensor,
    block_table_tensor: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
    max_model_len: int,
    out_clamped_positions: torch.Tensor,
    out_slot_mapping: torch.Tensor,
    input_batch_size: int | None = None,
) -> None:
    """Move each request to its next draft token (section 14)."""
    requests = len(positions_1d)
    position = positions_1d.long() + 1
    over = position >= max_model_len
    column = position // block_size
    kept = ~over & (column < block_table_tensor.shape[1])
    slots = torch.full((requests,), PAD_SLOT_ID, dtype=torch.int64, device=positions_1d.device)
    blocks = block_table_tensor[kept.nonzero().flatten(), column[kept]].long()
    slots[kept] = blocks * block_size + position[kept] % block_size
    out_clamped_positions[:requests] = position.masked_fill(over, 0)
    out_slot_mapping[:requests] = slots
    out_slot_mapping[requests : input_batch_size or requests] = PAD_SLOT_ID
    seq_lens.copy_((seq_lens.long() + 1).masked_fill(over, 1).clamp(max=max_model_len))


def compute_new_slot_mapping(
    cad: CommonAttentionMetadata,
    new_positions: torch.Tensor,
    is_rejected_token_mask: torch.Tensor,
    block_size: int,
    num_new_tokens: int,
    max_model_len: int,
) -> torch.Tensor:
    """Return the slots of a batch whose queries each got more tokens (section 14)."""
    rows = torch.arange(cad.num_reqs, device=new_positions.device)
    lens = cad.query_start_loc.long().diff() + num_new_tokens
    owner = rows.repeat_interleave(lens)
    position = new_positions[: len(owner)].long()
    column = position // block_size
    kept = ~is_rejected_token_mask[: len(owner)] & (position < max_model_len)
    kept &= column < cad.block_table_tensor.shape[1]
    slots = torch.full_like(new_positions, PAD_SLOT_ID, dtype=torch.int64)
    blocks = cad.block_table_tensor[owner[kept], column[kept]].long()
    slots[: len(owner)][kept] = blocks * block_size + position[kept] % block_size
    return slots


def prepare_next_token_ids_padded(
    sampled_token_ids: torch.Tensor,
    discard_request_mask: torch.Tensor,
    backup_next_token_ids: torch.Tensor,
    vocab_size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each request's last valid sampled token and the number of valid ones (14)."""
    rows, width = sampled_token_ids.shape
    valid = (sampled_token_ids != -1) & (sampled_token_ids < vocab_size)
    valid &= ~discard_request_mask[:rows, None]
    counts = valid.sum(1)
    last = (valid.int() * torch.arange(1, width + 1)).amax(1) - 1 if width else counts - 1
    chosen = sampled_token_ids.gather(1, last.clamp(min=0)[:, None])[:, 0] if width else counts
    tokens = torch.where(counts > 0, chosen, backup_next_token_ids[:rows])
    return tokens.int(), counts.int()


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sampled and the rejected tokens of each row (section 13)."""
    rows = len(idx_mapping)
    idle = idx_mapping < 0
    idle |= seq_lens[:rows] < prefill_len[idx_mapping.long().clamp(min=0)]
    num_sampled[:rows] = num_sampled[:rows].masked_fill(idle, 0)
    rejected = torch.zeros_like(num_sampled)
    rejected[:rows] = (cu_num_logits.diff()[:rows] - num_sampled[:rows]).masked_fill(idle, 0)
    return num_sampled, rejected


def compute_flashinfer_kv_metadata(
    seq_lens_cpu: torch.Tensor, block_table: torch.Tensor, page_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the page table of a batch as CSR (section 15)."""
    lengths = seq_lens_cpu.long()
    pages = (lengths + page_size - 1) // page_size
    listed = torch.arange(block_table.shape[1]) < pages[:, None]
    device = block_table.device
    indptr = torch.nn.functional.pad(pages.cumsum(0), (1, 0)).int().to(device)
    last = (lengths - (pages - 1).clamp(min=0) * page_size).int().to(device)
    return indptr, block_table[listed.to(device)].int(), last


def create_flashinfer_kv_indices(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    page_kernel_lens: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_start_idx: torch.Tensor | None,
    kv_indices: torch.Tensor,
    *,
    entry_page_size: int = 1,
) -> None:
    """Write the slots of the positions that each request sees (section 15)."""
    lens = page_kernel_lens.long()
    total = int(lens.sum())
    owner = torch.arange(len(lens)).repeat_interleave(lens, output_size=total)
    position = torch.arange(total) - kv_indptr.long()[owner]
    if kv_start_idx is not None:
        position = position + kv_start_idx.long()[owner]
    entry = req_to_token[req_pool_indices.long()[owner], position // entry_page_size].long()
    slots = entry * entry_page_size + position % entry_page_size
    kv_indices[:total] = slots.to(kv_indices.dtype)


def reshape_and_cache_flash(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache_dtype: str,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Write the keys and values of new tokens to their slots of the cache (section 8)."""
    written = (slot_mapping >= 0).nonzero().flatten()
    slots, size = slot_mapping[written], key_cache.shape[1]
    for new, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        kept = new[written]
        if kv_cache_dtype == "auto":
            cache[slots // size, slots % size] = kept
        else:
            bits = (kept.float() / scale.float()).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
            cache.view(torch.uint8)[slots // size, slots % size] = bits.view(torch.uint8)
