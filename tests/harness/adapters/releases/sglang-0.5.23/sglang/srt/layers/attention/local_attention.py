"""Stand-in: each request is one virtual request of its own."""

import numpy as np


def make_local_attention_virtual_batches(
    attn_chunk_size,
    query_start_loc_np,
    seq_lens_np,
    block_table,
    page_size=0,
    preserve_attn_chunk_size=False,
):
    assert preserve_attn_chunk_size
    lens = np.diff(query_start_loc_np)
    return lens, query_start_loc_np.astype(np.int32), seq_lens_np.astype(np.int32), block_table
