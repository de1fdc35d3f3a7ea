"""CUDA device: wait for it, forbid waits, detect that it is lost.

An error of a kernel is raised by a later call, so each attempt waits for its own kernels.
After an illegal access no CUDA call of the process succeeds, so the worker must end.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from attnproof.harness.model.candidate import device_type
from attnproof.harness.model.text import text_of

# PyTorch and Triton raise plain RuntimeErrors: only the message identifies these errors.
_RUNTIME_ERRORS: Final = ("CUDA error", "HIP error", "Triton Error [CUDA]", "device-side assert")
"""Parts of messages that report an error of the CUDA runtime."""
_FORBIDDEN_WAIT: Final = "synchronizing CUDA operation"
"""Part of PyTorch's message at a wait inside `no_waiting`."""


class DeviceLostError(BaseException):
    """The device is unusable for the rest of this process."""


def select(device: str) -> None:
    """Make a numbered device the current one of this process: kernels are launched there."""
    kind, _, number = device.partition(":")
    set_device = getattr(getattr(torch, kind, None), "set_device", None)
    if kind != "cpu" and number and set_device is not None:
        set_device(int(number))


def wait_for(device: str) -> None:
    """Wait until everything that was launched on the device is done."""
    if device == "cpu":
        return
    module = getattr(torch, device_type(device), None)
    if module is not None and hasattr(module, "synchronize"):
        module.synchronize()


@contextmanager
def no_waiting() -> Iterator[None]:
    """Make PyTorch raise RuntimeError at each of its waits for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def wait_message(error: BaseException | None) -> str:
    """Return PyTorch's message of the forbidden wait that caused the error, "" without one."""
    while error is not None:
        # Not isinstance: the class may be a candidate's, and deny every look.
        text = text_of(error, str) if issubclass(type(error), RuntimeError) else ""
        if _FORBIDDEN_WAIT in text:
            return text.splitlines()[0][:200]
        error = error.__cause__ or error.__context__
    return ""


def is_lost(error: BaseException) -> bool:
    """True if the error came from CUDA and no later CUDA call can succeed.

    After a launch with wrong arguments, which is a CUDA error too, later calls succeed.
    """
    if not issubclass(type(error), RuntimeError):
        return False
    if not any(part in text_of(error, str) for part in _RUNTIME_ERRORS):
        return False
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return True  # no device to try a call on
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
