"""The four operations in vectorised torch."""

import torch


def get_uniform_decode_token_count(num_reqs, num_tokens, max_query_len, decode_graph_eligible):
    """Return the query length of all rows, None if they differ or a row is no decode."""
    is_uniform = num_reqs > 0 and num_tokens == num_reqs * max_query_len
    return max_query_len if decode_graph_eligible and is_uniform else None


def compute_sub_block_ptrs(block_ids, factor, output, base, row_stride, part_bytes, skip_count=0):
    """Write the address of each part of the chunks."""
    places = torch.arange(len(output)) + skip_count
    chunks = block_ids[places // factor].long()
    output[:] = base + chunks * row_stride + places % factor * part_bytes


def triton_convert_req_index_to_global_index(req_id, block_table, token_indices, block_size=64):
    """Return the slot of each chosen position, -1 for -1 and behind the table's columns."""
    columns = block_table.shape[1]
    blocks = token_indices // block_size
    is_live = (token_indices >= 0) & (blocks < columns)
    if not columns:
        return torch.full_like(token_indices, -1)
    ids = block_table[req_id.long()[:, None], torch.where(is_live, blocks, 0).long()]
    return torch.where(is_live, ids * block_size + token_indices % block_size, -1)
