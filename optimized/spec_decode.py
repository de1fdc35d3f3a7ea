"""Reshape queries and outputs of speculative decoding (SPEC.md section 6).

Short forms for well-formed tensors. With checks they call the functions of the same names
that both packages share.
"""

from __future__ import annotations

import torch

from attnproof.reference import shared

from .checking import checks

__all__ = [
    "reshape_attn_output_for_spec_decode",
    "reshape_query_for_spec_decode",
]

_checked = checks.follow(globals())


def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Return a (T, H, D) query as a (batch_size, T / batch_size, H, D) view.

    Result and errors as in `reference`. SPEC.md section 6.
    """
    if _checked:
        return shared.reshape_query_for_spec_decode(query, batch_size)
    tokens, heads, size = query.shape
    return query.view(batch_size, tokens // batch_size, heads, size)


def reshape_attn_output_for_spec_decode(attn_output: torch.Tensor) -> torch.Tensor:
    """Return a (batch, tokens, H, D) output as a (batch * tokens, H, D) view; 3-D unchanged.

    Result and errors as in `reference`. SPEC.md section 6.
    """
    if _checked:
        return shared.reshape_attn_output_for_spec_decode(attn_output)
    if attn_output.dim() == 3:
        return attn_output
    batch, tokens, heads, size = attn_output.shape
    return attn_output.view(batch * tokens, heads, size)
