"""Select device or host for an operation, and copy values between the two.

Accelerator tensors are processed by kernels, CPU tensors by host loops. If
`TRITON_INTERPRET=1` is in the environment before `optimized` (and so Triton) is first
imported, CPU tensors are processed by kernels too, in Triton's interpreter.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Final

import torch

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "yes"}
"""True if kernels run for CPU tensors too."""


def on_device(tensor: torch.Tensor) -> bool:
    """True if kernels, not host loops, process `tensor`."""
    return INTERPRETED or not tensor.is_cpu


def lazily(place: str) -> Callable[..., Any]:
    """Return a function of `kernels`, as "module.name", which is imported when first called.

    Host loops need no Triton, and an import statement in a function takes 1 us each time.
    """
    module, name = place.split(".")
    found: list[Callable[..., Any]] = []

    def call(*arguments: Any) -> Any:
        if not found:
            found.append(getattr(import_module(f".kernels.{module}", __package__), name))
        return found[0](*arguments)

    return call


def staging(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an uninitialised host buffer that `upload` can copy to `device` asynchronously."""
    return torch.empty(length, dtype=dtype, pin_memory=device.type == "cuda")


def upload(staged: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy the buffer to `device` asynchronously; return the buffer itself for the CPU."""
    # PyTorch does not reuse pinned memory before a copy from it has finished.
    return staged.to(device, non_blocking=True)


def download(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the host.

    Synchronises with the device: call it only where SPEC.md allows a sync.
    """
    staged = staging(tensor.shape[0], tensor.dtype, tensor.device)
    staged.copy_(tensor, non_blocking=staged.is_pinned())
    if staged.is_pinned():
        # A copy to pinned memory is asynchronous: without this the host reads stale data.
        torch.cuda.current_stream(tensor.device).synchronize()
    return staged


def launching_on(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which Triton launches on `device`."""
    # Triton launches on the current device, not on that of the tensors.
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)
