"""The function by which builders split a batch."""


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    """Return the counts of decodes and prefills, and of their tokens."""
    md = common_attn_metadata
    lengths = md.query_start_loc_cpu.diff().tolist()
    decodes = next((i for i, n in enumerate(lengths) if n > decode_threshold), len(lengths))
    tokens = sum(lengths[:decodes])
    return decodes, md.num_reqs - decodes, tokens, md.num_actual_tokens - tokens
