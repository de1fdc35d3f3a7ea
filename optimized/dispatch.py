"""Device or host: where each operation runs, and how host values reach a device.

Kernels run for accelerator tensors. With `TRITON_INTERPRET=1` in the environment
before `optimized` (and so Triton) is first imported they run for CPU tensors too, in
Triton's interpreter; without it CPU tensors take the host loops.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Final

import torch

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "yes"}
"""Whether kernels run for CPU tensors as well."""


def on_device(tensor: torch.Tensor) -> bool:
    """Whether kernels, not host loops, produce what is derived from `tensor`."""
    return INTERPRETED or not tensor.is_cpu


def staging(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An uninitialised host buffer that `upload` can send to `device` without waiting."""
    return torch.empty(length, dtype=dtype, pin_memory=device.type == "cuda")


def upload(staged: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The buffer on `device`; itself if that is the CPU.

    The copy is asynchronous: pinned memory is reused by PyTorch only when it is done.
    """
    return staged.to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, complete when this returns.

    Waits for the device, so only where SPEC.md allows a sync. A copy to pinned memory
    that nobody waits for would be read before it has arrived.
    """
    staged = staging(tensor.shape[0], tensor.dtype, tensor.device)
    staged.copy_(tensor, non_blocking=staged.is_pinned())
    if staged.is_pinned():
        torch.cuda.current_stream(tensor.device).synchronize()
    return staged


def launching_on(device: torch.device) -> AbstractContextManager[None]:
    """Context in which Triton launches on `device`: it takes the current one, not the tensors'."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
