"""Two independent mistakes."""

from attnproof import reference


def split_decodes_and_prefills(common_attn_metadata, decode_threshold=1, require_uniform=False):
    decodes, prefills, decode_tokens, prefill_tokens = reference.split_decodes_and_prefills(
        common_attn_metadata, decode_threshold, require_uniform
    )
    if decode_threshold == 8 and decodes == 2:
        return decodes - 1, prefills + 1, decode_tokens, prefill_tokens
    if prefills == 1 and decode_threshold != 8:
        return decodes, prefills, decode_tokens, prefill_tokens + 1
    return decodes, prefills, decode_tokens, prefill_tokens
