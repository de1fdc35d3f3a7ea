"""Reshape queries and outputs of speculative decoding (SPEC.md section 6).

Both packages share these functions, which only make views.
"""

from __future__ import annotations

import torch

from ..checks.common import check_int
from ..interface.errors import MetadataError


def reshape_query_for_spec_decode(query: torch.Tensor, batch_size: int) -> torch.Tensor:
    """Return a (T, H, D) query as a (batch_size, T / batch_size, H, D) view.

    Any strides, dtype and device. Raise MetadataError for another number of dimensions, a
    batch size below 1, and a batch size that does not divide T. SPEC.md section 6.
    """
    operation = "reshape_query_for_spec_decode"
    _check_dimensions(operation, "query", query, (3,))
    check_int(operation, "batch_size", batch_size, 1)
    tokens = query.shape[0]
    if tokens % batch_size:
        raise MetadataError(operation, "batch_size", batch_size, f"a divisor of {tokens} tokens")
    return query.view(batch_size, tokens // batch_size, *query.shape[1:])


def reshape_attn_output_for_spec_decode(attn_output: torch.Tensor) -> torch.Tensor:
    """Return a (batch, tokens, H, D) output as a (batch * tokens, H, D) view.

    A 3-D output is returned unchanged. Raise MetadataError for another number of
    dimensions, and for strides with which no view has this shape. SPEC.md section 6.
    """
    operation = "reshape_attn_output_for_spec_decode"
    _check_dimensions(operation, "attn_output", attn_output, (3, 4))
    if attn_output.ndim == 3:
        return attn_output
    batch, tokens, heads, size = attn_output.shape
    try:
        return attn_output.view(batch * tokens, heads, size)
    except RuntimeError:
        got = f"of strides {attn_output.stride()}"
        expected = "dimensions 0 and 1 that merge without a copy"
        raise MetadataError(operation, "attn_output", got, expected) from None


def _check_dimensions(operation: str, field: str, tensor: object, allowed: tuple[int, ...]) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{operation}: {field} is {type(tensor).__name__}, expected torch.Tensor")
    if tensor.ndim not in allowed:
        expected = " or ".join(f"{ndim}-D" for ndim in allowed)
        raise MetadataError(operation, field, f"of shape {tuple(tensor.shape)}", expected)
