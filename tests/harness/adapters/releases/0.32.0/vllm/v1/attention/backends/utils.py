"""What a release does that keeps the batch's class elsewhere."""

from __future__ import annotations

from dataclasses import replace


def make_local_attention_virtual_batches(attn_chunk_size, common_attn_metadata, block_size=0):
    made = replace(common_attn_metadata, max_seq_len=attn_chunk_size, max_query_len=block_size)
    return made, lambda block_table: block_table


def compute_causal_conv1d_metadata(query_start_loc_p_cpu, *, device):
    assert query_start_loc_p_cpu.device.type == "cpu"
    return query_start_loc_p_cpu, device
