"""The request of each query token (SPEC.md section 20)."""

from __future__ import annotations

import torch

from .checking import check_call, checks
from .dispatch import on_device
from .host.request_indices import write_rows
from .host.vectors import vector

__all__ = ["compute_token_to_req_indices"]

_checked = checks.follow(globals())


def compute_token_to_req_indices(
    query_start_loc: torch.Tensor, out: torch.Tensor, num_mapped_tokens: int, num_tokens: int
) -> torch.Tensor:
    """Write the request of each query token to `out`, and 0 for padding; return what is written.

    Result and errors as in `reference`. On a device one kernel, no sync. SPEC.md section 20.
    """
    if _checked:
        check_call("compute_token_to_req_indices", **locals())
    if on_device(out):
        from .kernels.request_indices import write_request_indices

        write_request_indices(query_start_loc, out, num_mapped_tokens, num_tokens)
    else:
        rows = query_start_loc.shape[0] - 1
        address, stride, _ = vector(out)
        write_rows(rows, *vector(query_start_loc), address, stride, num_mapped_tokens, num_tokens)
    return out[:num_tokens]
