"""The query length that all rows share, if any (vllm/v1/worker/utils.py)."""

from attnproof.define import MaxQueryLen, NumReqs, NumTokens, operation


@operation
def get_uniform_decode_token_count(
    num_reqs: NumReqs,
    num_tokens: NumTokens,
    max_query_len: MaxQueryLen,
    decode_graph_eligible: bool,
) -> int | None:
    """Return the query length of all rows; None if they differ, or if a row is no decode."""
    if not decode_graph_eligible or num_reqs == 0:
        return None
    if num_tokens != num_reqs * max_query_len:
        return None
    return max_query_len
