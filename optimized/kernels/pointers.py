"""Device functions shared by the kernels of a persistent batch."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..dispatch import staging, upload


@triton.jit
def int32_pointer(addresses, index):
    """Return element `index` of a table of addresses as a pointer to int32."""
    return tl.load(addresses + index).to(tl.pointer_type(tl.int32))


def addresses_of(tensors: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the addresses of the tensors as uint64 on the device, by an asynchronous copy."""
    staged = staging(len(tensors), torch.int64, device)
    for index, tensor in enumerate(tensors):
        staged[index] = tensor.data_ptr()
    return upload(staged, device).view(torch.uint64)
