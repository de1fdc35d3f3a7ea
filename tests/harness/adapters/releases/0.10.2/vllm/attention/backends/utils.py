"""The list form of slot mapping."""


def compute_slot_mapping(
    is_profile_run, slot_mapping, seq_id, seq_len, context_len, start_idx, block_size, block_tables
):
    slot_mapping.extend([-1] * max(0, start_idx - context_len))
    for position in range(max(start_idx, context_len), seq_len):
        block = block_tables[seq_id][position // block_size]
        slot_mapping.append(block * block_size + position % block_size)
