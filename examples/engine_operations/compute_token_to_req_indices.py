"""Rows of query tokens in a buffer of a CUDA graph (vllm/v1/attention/ops/metadata.py)."""

from typing import Annotated

import torch

from attnproof.define import Array, Int, NumTokens, Offsets, operation

NumPadded = Annotated[int, Int("axis", axis="P", least="T")]  # tokens with padding
Buffer = Annotated[torch.Tensor, Array(shape=("P",), dtype=torch.int32, written=True, longer=True)]


@operation
def compute_token_to_req_indices(
    query_start_loc: Offsets, out: Buffer, num_mapped_tokens: NumTokens, num_tokens: NumPadded
) -> None:
    """Write the row of each query token, and 0 for padding; entries behind it stay."""
    offsets = query_start_loc.tolist()
    for row in range(len(offsets) - 1):
        for token in range(offsets[row], offsets[row + 1]):
            out[token] = row
    for token in range(num_mapped_tokens, num_tokens):
        out[token] = 0
