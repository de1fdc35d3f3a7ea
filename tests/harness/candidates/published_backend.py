"""Ten functions as published engines have them (vLLM 0.11.2; the slots of a list, 0.10.2).

Nothing is checked but what these engines assert. `E…` marks a mistake that a batch of an
engine shows, by its erratum in docs/SPEC.md. "Only …" marks a deviation that no such batch
shows, or that changes no value.
"""

import numpy as np
import torch

from attnproof.reference.interface import PAD_SLOT_ID
from attnproof.reference.shared import CommonAttentionMetadata

# Decodes and prefills


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    md = common_attn_metadata
    everything = (md.num_reqs, 0, md.num_actual_tokens, 0)
    if md.max_query_len <= decode_threshold and not (require_uniform and decode_threshold > 1):
        return everything  # Only without requests, E2: padded tokens are taken for decodes'.

    lengths = md.query_start_loc_cpu.diff()
    if int(lengths[0]) > decode_threshold:  # Only without requests, E2: IndexError.
        return (0, md.num_reqs, 0, md.num_actual_tokens)
    # E2: rows of graph padding have another length than the first request.
    prefill = lengths != lengths[0] if require_uniform else lengths > decode_threshold
    if not bool(prefill.any()):
        return everything
    decodes = int(prefill.int().argmax())
    assert bool((lengths[:decodes] <= decode_threshold).all())
    tokens = int(md.query_start_loc_cpu[decodes])
    return (decodes, md.num_reqs - decodes, tokens, md.num_actual_tokens - tokens)


def reorder_batch_to_split_decodes_and_prefills(input_batch, scheduler_output, decode_threshold=1):
    req_ids = input_batch.req_ids
    scheduled = np.array([scheduler_output.num_scheduled_tokens[req_id] for req_id in req_ids])
    # Rows that know no progress: every request has some.
    computed = getattr(input_batch, "num_computed_tokens_cpu", np.ones(len(req_ids), np.int32))
    prompt = computed[: len(req_ids)] == 0
    region = np.where(scheduled <= decode_threshold, 0, np.where(prompt, 2, 1))
    wanted = np.sort(region)
    misplaced = np.flatnonzero(region != wanted)
    if not len(misplaced):
        return False
    # Only the order: the front-most misplaced row of a region goes to its front-most place.
    sources = misplaced[np.argsort(region[misplaced], kind="stable")]
    target = {int(source): int(place) for source, place in zip(sources, misplaced, strict=True)}
    for source in [*target]:
        place = target[source]
        while place != source:  # the row that came to `source` moves on, round the cycle
            input_batch.swap_states(source, place)
            following = target.get(place, place)
            target[place] = place
            place = following
    return True


# Micro-batches


def slice_query_start_locs(query_start_loc, request_slice):
    offsets = query_start_loc[request_slice.start : request_slice.stop + 1]
    return offsets - query_start_loc[request_slice.start]


def _make_metadata_with_slice(ubatch_slice, attn_metadata):
    assert not ubatch_slice.is_empty(), "empty slice"
    md, rows, tokens = attn_metadata, ubatch_slice.request_slice, ubatch_slice.token_slice
    starts = md.query_start_loc_cpu
    first, last = rows.start, rows.stop - 1
    # E37: a slice that begins or ends in graph padding.
    assert starts[first] <= tokens.start < starts[first + 1], "start outside of its request"
    assert starts[last] < tokens.stop <= starts[last + 1], "end outside of its request"

    offsets = slice_query_start_locs(md.query_start_loc, rows)
    offsets_cpu = slice_query_start_locs(starts, rows)
    skipped = int(tokens.start - starts[first])
    if skipped > 0:
        offsets[1:] -= skipped
        offsets_cpu[1:] -= skipped
    # E35: lengths and computed tokens stay in the parent's memory unless the end is cut.
    seq_lens, seq_lens_cpu = md.seq_lens[rows], md.seq_lens_cpu[rows]
    if tokens.stop < int(starts[last + 1]):
        # E3, with three slices or more: a rebased offset minus an absolute index.
        behind = int(offsets_cpu[-1]) - tokens.stop
        seq_lens, seq_lens_cpu = seq_lens.clone(), seq_lens_cpu.clone()
        for cut in (offsets, offsets_cpu, seq_lens, seq_lens_cpu):
            cut[-1] -= behind

    return CommonAttentionMetadata(  # Only of a subclass, E34: becomes the plain class.
        query_start_loc=offsets,
        query_start_loc_cpu=offsets_cpu,
        seq_lens=seq_lens,
        seq_lens_cpu=seq_lens_cpu,
        # E4: without the tokens that an earlier slice computes.
        num_computed_tokens_cpu=md.num_computed_tokens_cpu[rows],
        num_reqs=rows.stop - rows.start,
        num_actual_tokens=tokens.stop - tokens.start,
        max_query_len=int(offsets_cpu.diff().abs().max()) or md.max_query_len,
        max_seq_len=int(seq_lens_cpu.max()),
        block_table_tensor=md.block_table_tensor[rows],
        slot_mapping=md.slot_mapping[tokens],
    )  # E5: causal, the logits fields, encoder_seq_lens and dcp_local_seq_lens are left out.


def split_attn_metadata(ubatch_slices, common_attn_metadata):
    return [_make_metadata_with_slice(ubatch, common_attn_metadata) for ubatch in ubatch_slices]


# Chunked local attention


def make_local_attention_virtual_batches(attn_chunk_size, common_attn_metadata, block_size=0):
    md, chunk = common_attn_metadata, attn_chunk_size
    device, table = md.query_start_loc.device, md.block_table_tensor
    queries = np.diff(md.query_start_loc_cpu.numpy())
    sequences = md.seq_lens_cpu.numpy()

    # Only of int64 batches, E28: int32 here, whatever the batch has.
    in_first = np.minimum(chunk - (sequences - queries) % chunk, queries).astype(np.int32)
    # E7: a row of graph padding has a last chunk of whole length.
    in_last = chunk + sequences % -chunk
    chunks = 1 - (in_first - queries) // chunk
    ends = np.cumsum(chunks)
    total = ends[-1]  # Only without requests, E27: IndexError.

    def repeated(values):
        return np.repeat(values, chunks)

    number = np.arange(total, dtype=np.int32) - repeated(ends - chunks)
    following = repeated(queries - in_first) - chunk * (number - 1)
    query_lens = np.where(number == 0, repeated(in_first), np.minimum(following, chunk))
    query_lens = query_lens.astype(queries.dtype)
    offsets = np.zeros(total + 1, dtype=np.int32)
    np.cumsum(query_lens, out=offsets[1:])
    seq_lens = np.full(total, chunk, dtype=np.int32)
    seq_lens[ends - 1] = in_last

    behind = (repeated(chunks) - number - 1) * chunk
    # Only at its default, E6: a block size of 0 divides before it is refused.
    first_block = (repeated(sequences) - behind - repeated(in_last)) // block_size
    assert chunk % block_size == 0, "chunk is not a multiple of the block size"
    blocks = first_block[:, None] + np.arange(chunk // block_size, dtype=np.int32)
    columns = blocks.clip(max=table.shape[1] - 1)  # E7: negative columns are not clipped.
    owners = repeated(np.arange(len(sequences), dtype=np.int32))[:, None]
    local_table = table[torch.from_numpy(owners), torch.from_numpy(columns)]

    offsets_cpu, seq_lens_cpu = torch.from_numpy(offsets), torch.from_numpy(seq_lens)
    return CommonAttentionMetadata(  # Only of a subclass, E34: becomes the plain class.
        query_start_loc=offsets_cpu.to(device, non_blocking=True),
        query_start_loc_cpu=offsets_cpu,
        seq_lens=seq_lens_cpu.to(device, non_blocking=True),
        seq_lens_cpu=seq_lens_cpu,
        num_computed_tokens_cpu=torch.from_numpy(seq_lens - query_lens),
        num_reqs=len(seq_lens),
        num_actual_tokens=md.num_actual_tokens,
        max_query_len=query_lens.max(),  # Only the type, E1: a numpy scalar.
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=local_table,
        slot_mapping=md.slot_mapping,
        causal=True,
    )  # Only fields that no local layer reads, E29: logits fields and encoder_seq_lens.


# Slot mapping


def _compute_slot_mapping_numpy(slot_mapping, block_table, range_start, range_end, block_size):
    positions = np.arange(range_start, range_end)
    # Only of numpy's int32 ids, E55: the product has the ids' type.
    slots = np.array(block_table)[positions // block_size] * block_size + positions % block_size
    slot_mapping.extend(slots)  # Only the type, E47: numpy integers.


def build_slot_mapping(
    query_start_loc,
    num_computed_tokens,
    block_table,
    block_size,
    *,
    num_padded_tokens=None,
    start_idx=None,
    out=None,
):
    offsets, computed = query_start_loc.cpu().numpy(), num_computed_tokens.cpu().numpy()
    table, columns = block_table.cpu().numpy(), block_table.shape[1]
    requests = np.repeat(np.arange(len(computed)), np.diff(offsets))
    tokens = len(requests)
    positions = computed[requests] + np.arange(tokens) - offsets[requests]
    # Only of rows that are too short, E46: the next row's block, or IndexError.
    blocks = table.ravel()[requests * columns + positions // block_size]
    # Only of 2**31 slots and more, E45: id and block size are multiplied in int32.
    slots = blocks * block_size + positions % block_size
    if start_idx is not None:
        slots[positions < start_idx.cpu().numpy()[requests]] = PAD_SLOT_ID

    length = tokens if num_padded_tokens is None else num_padded_tokens
    if out is None:
        out = torch.empty(max(length, tokens), dtype=torch.int64, device=query_start_loc.device)
    elif num_padded_tokens is None:
        length = len(out)
    out[:tokens].copy_(torch.from_numpy(slots))
    out[tokens:].fill_(PAD_SLOT_ID)
    return out[:length]


# Fast prefill


def make_kv_sharing_fast_prefill_common_attn_metadata(common_attn_metadata):
    md = common_attn_metadata
    if md.max_query_len == 1:
        return md
    assert md.logits_indices_padded is not None  # E8: a dummy run has none.
    assert md.num_logits_indices is not None

    sampled = md.logits_indices_padded[: md.num_logits_indices]
    # Only of an index in graph padding, E53: it belongs to the row behind the last.
    owners = torch.bucketize(sampled, md.query_start_loc[1:], right=True)
    counts = torch.bincount(owners, minlength=md.num_reqs)
    offsets = torch.zeros_like(md.query_start_loc)
    offsets[1:] = counts.cumsum(0)
    longest, tokens = int(counts.max()), int(counts.sum())  # Only without requests, E41.
    return CommonAttentionMetadata(  # Only of a subclass, E34: becomes the plain class.
        query_start_loc=offsets,
        # E40: on a GPU the mirrors are read before they have arrived.
        query_start_loc_cpu=offsets.to("cpu", non_blocking=True),
        seq_lens=md.seq_lens,
        seq_lens_cpu=md.seq_lens.to("cpu", non_blocking=True),
        num_computed_tokens_cpu=md.num_computed_tokens_cpu,
        num_reqs=md.num_reqs,
        num_actual_tokens=tokens,
        max_query_len=longest,
        max_seq_len=md.max_seq_len,
        block_table_tensor=md.block_table_tensor,
        slot_mapping=md.slot_mapping,
        causal=True,
    )  # E20: the logits fields, encoder_seq_lens and dcp_local_seq_lens are left out.


# Causal convolution


def compute_causal_conv1d_metadata(query_start_loc_p):
    device, rows = query_start_loc_p.device, 8
    nums = -(-query_start_loc_p.diff().cpu() // rows)
    mlist = torch.from_numpy(np.repeat(np.arange(len(nums)), nums))
    numbers = [number for count in nums.tolist() for number in range(count)]
    offsetlist = torch.tensor(numbers, dtype=torch.int32)
    room = 2 * max(1024, len(mlist))
    batch_ptr, token_chunk_offset_ptr = (
        torch.full((room,), PAD_SLOT_ID, dtype=torch.int32, device=device) for _ in range(2)
    )
    batch_ptr[: len(mlist)].copy_(mlist)
    token_chunk_offset_ptr[: len(mlist)].copy_(offsetlist)
    programs = {
        "nums": nums,
        "tot": nums.sum().item(),
        "mlist": mlist,
        "mlist_len": len(mlist),
        "offsetlist": offsetlist,
        "batch_ptr": batch_ptr,
        "token_chunk_offset_ptr": token_chunk_offset_ptr,
    }
    return {rows: programs}, batch_ptr, token_chunk_offset_ptr
