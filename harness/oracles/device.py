"""What an oracle must know of a CUDA device: that it waits, that it is waited for, that it is lost.

A kernel's error shows at a later call, so each attempt waits for its own kernels. After
an illegal access no call of the process succeeds any more: that is no exception of the
candidate's but the end of its process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

_SIGNS: Final = ("CUDA error", "HIP error", "Triton Error [CUDA]", "device-side assert")
"""How errors of the CUDA runtime begin, whoever reports them."""
_WAITED: Final = "synchronizing CUDA operation"
"""What PyTorch says where a call waits although it was told not to."""


class DeviceLostError(BaseException):
    """The candidate has made the device unusable for this process."""


def wait_for(device: str) -> None:
    """Return when everything that was launched on the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make every wait of the host for the device that PyTorch knows of a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def waited(error: BaseException | None) -> str:
    """What PyTorch said of a wait inside `no_waiting`, from which the error came; "" of none."""
    while error is not None:
        if isinstance(error, RuntimeError) and _WAITED in str(error):
            return str(error).splitlines()[0][:200]
        error = error.__cause__ or error.__context__
    return ""


def is_lost(error: BaseException) -> bool:
    """Whether the error came of CUDA and no later call can succeed.

    Wrong arguments of a launch are an error of CUDA too, after which all goes on.
    """
    if not isinstance(error, RuntimeError) or not any(sign in str(error) for sign in _SIGNS):
        return False
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True  # nobody to ask
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
