"""Late copies: detect uses of both ends of a non-blocking copy before a wait (K21).

On a GPU a non-blocking copy returns before the data has moved. A read of its result on the host
sometimes gets the memory's earlier content, and a write to its source on the host sometimes
changes what is copied. On the CPU the same code is always right. So on the CPU some tensors
stand in for device tensors: a non-blocking copy of one to the host holds poison until something
waits for the device, and the source of a copy to one must not change until then. On a GPU a
busy device makes the copies late.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from attnproof.harness.cases.memory.arena import Arena
from attnproof.harness.model.call import Call
from attnproof.harness.model.candidate import device_type
from attnproof.harness.model.operation import Operation
from attnproof.harness.model.place import Place, by_place
from attnproof.harness.oracles.device import DeviceLostError, is_lost, wait_for

_BUSY_CYCLES = 40_000_000
"""Clock cycles that keep a GPU busy for about 20 ms: an early read falls into that time."""
_WAITS = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.cpu,
    torch.Tensor.nonzero,
    torch.Tensor.unique,
    torch.Tensor.equal,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.nonzero,
    torch.unique,
    torch.equal,
}
"""Functions that wait for the device if their tensor is on it."""


class LateCall(NamedTuple):
    """A call during which copies to the host arrive late."""

    copies: int
    """Number of non-blocking copies from device to host."""
    may_wait: bool
    """True if the code contains a wait, which it may reach on a GPU only."""
    source_changed: bool
    """True if the source of a copy to the device changed before a wait."""
    outputs: dict[Place, Any]
    error: BaseException | None
    """Exception that the call raised."""


def is_unwaited_copy(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if this call of a torch function is a non-blocking copy that may change devices."""
    if func is torch.Tensor.copy_:
        asked = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
        return bool(asked) and (args[0].is_cpu or args[1].is_cpu)
    if func is torch.Tensor.to:
        asked = kwargs.get("non_blocking", args[3] if len(args) > 3 else False)
        return bool(asked) and _target(args, kwargs) is not None
    return False


def call_with_late_copies(operation: Operation, function: Any, call: Call, device: str) -> LateCall:
    """Call the function with late copies: on a busy GPU, or on the CPU with simulated delays."""
    if device != "cpu":
        return _on_busy_device(operation, function, call, device)
    mode = _LateCopies(call.arena)
    try:
        with mode, _patched_waits(mode):
            result = operation.call.run(function, call)
    except Exception as error:  # poison may cause any error
        return LateCall(mode.copies, mode.may_wait, mode.source_changed, {}, error)
    mode.check_sources()
    outputs = by_place(operation.call.outputs(call, result))
    return LateCall(mode.copies, mode.may_wait, mode.source_changed, outputs, None)


def _on_busy_device(operation: Operation, function: Any, call: Call, device: str) -> LateCall:
    """Call the function while a GPU sleeps; other devices have no way to keep them busy."""
    if device_type(device) == "cuda" and hasattr(torch._C, "_cuda_sleep"):
        torch.cuda._sleep(_BUSY_CYCLES)  # type: ignore[no-untyped-call]
    try:
        outputs = by_place(operation.call.outputs(call, operation.call.run(function, call)))
        # Copy host tensors now: the late data would arrive before they are compared.
        outputs = {
            name: value.clone() if isinstance(value, torch.Tensor) and value.is_cpu else value
            for name, value in outputs.items()
        }
        wait_for(device)
    except Exception as error:  # late data may cause any error
        if is_lost(error):
            raise DeviceLostError(str(error)) from error
        return LateCall(1, False, False, {}, error)
    return LateCall(1, False, False, outputs, None)


class _LateCopies(TorchFunctionMode):
    """Simulated device: tracks stand-ins for device tensors by origin and delays their copies.

    Device tensors are those that an engine passes on the device, those allocated with a
    device, and those computed from either.
    """

    def __init__(self, arena: Arena | None) -> None:
        super().__init__()
        self.copies = 0
        self.may_wait = False
        self.source_changed = False
        self._arena = arena
        self._device_tensors: dict[int, torch.Tensor] = {}
        """Device tensors by memory address; kept alive, so that no address is used again."""
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Results of copies to the host, and their values."""
        self._sent: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Sources of copies to the device, and their values."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the function; let a non-blocking copy to the host return poison, note one to the
        device.
        """
        kwargs = kwargs or {}
        from_device = bool(args) and self._is_of_device(args[0])
        if is_unwaited_copy(func, args, kwargs):
            if func is torch.Tensor.to and from_device and _to_host(args, kwargs):
                return self._late(torch.empty_like(func(*args, **kwargs)), func(*args, **kwargs))
            if func is torch.Tensor.copy_ and self._is_of_device(args[1]) and not from_device:
                return self._late(args[0], args[1].to(args[0].dtype))
            self._note_source(func, args, kwargs)
            if func is torch.Tensor.to and self._is_made_on_device(args, kwargs):
                return self._sent_copy(func(*args, **kwargs), args[0])
        if from_device and (func in _WAITS or (func is torch.Tensor.to and _to_host(args, kwargs))):
            self.arrive()
        before = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        result = func(*args, **kwargs)
        if self._is_made_on_device(args, kwargs):
            for tensor in _tensors(result):
                if func is torch.Tensor.to or _memory(tensor) not in before:
                    self._device_tensors[_memory(tensor)] = tensor
        return result

    def arrive(self, *_: object) -> None:
        """Complete all copies, at a wait for the device."""
        self.check_sources()
        with torch._C.DisableTorchFunction():
            for host, values in self._pending:
                host.copy_(values)
        self._pending.clear()

    def check_sources(self) -> None:
        """Compare the sources of copies to the device with their values at the copy."""
        with torch._C.DisableTorchFunction():
            changed = [not torch.equal(source, values) for source, values in self._sent]
        self.source_changed = self.source_changed or any(changed)
        self._sent.clear()

    def _note_source(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the source of a copy from the host to the device."""
        to_device = not _is_host(_target(args, kwargs)) if func is torch.Tensor.to else False
        source = args[0] if func is torch.Tensor.to else args[1]
        if func is torch.Tensor.copy_:
            to_device = self._is_of_device(args[0])
        if to_device and not self._is_of_device(source):
            self._sent.append((source, source.clone()))

    def _sent_copy(self, device_copy: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Return the device tensor of a copy, in memory of its own even if `to` gave the source."""
        if _memory(device_copy) == _memory(source) and not self._is_of_device(source):
            device_copy = device_copy.clone()
        self._device_tensors[_memory(device_copy)] = device_copy
        return device_copy

    def _late(self, host: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        self.copies += 1
        self._pending.append((host, values.clone()))
        # Small numbers, so that a loop over a poisoned length ends soon.
        return host.fill_(0) if bool(values.any()) else host.fill_(1)

    def _is_of_device(self, value: Any) -> bool:
        if not isinstance(value, torch.Tensor):
            return False
        if self._arena is not None and self._arena.is_on_device(value):
            return True
        return _memory(value) in self._device_tensors

    def _is_made_on_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        asked = kwargs.get("device")
        if asked is None:
            asked = next((arg for arg in args[1:] if isinstance(arg, torch.device)), None)
        if asked is not None:
            return not _is_host(asked)
        if _to_host(args, kwargs):
            return False
        return any(self._is_of_device(tensor) for tensor in _tensors((args, kwargs)))


@contextmanager
def _patched_waits(mode: _LateCopies) -> Iterator[None]:
    """Let torch's wait functions complete the copies; set `may_wait` if the code names one."""
    stream = SimpleNamespace(synchronize=mode.arrive)
    called: set[CodeType] = set()

    def record(frame: FrameType, event: str, _arg: object) -> None:
        if event == "call":
            called.add(frame.f_code)

    before = sys.getprofile()
    with (
        patch.object(torch.cuda, "synchronize", mode.arrive),
        patch.object(torch.cuda, "current_stream", lambda _device=None: stream),
        patch.object(torch.accelerator, "synchronize", mode.arrive),
    ):
        sys.setprofile(record)
        try:
            yield
        finally:
            sys.setprofile(before)
            # `if tensor.is_cuda: torch.cuda.synchronize()` waits on a GPU, but not here.
            mode.may_wait = any("synchronize" in code.co_names for code in called)


def _is_host(device: Any) -> bool:
    """True if the device is the string "cpu"; a device object stands for the simulated GPU."""
    return isinstance(device, str) and device.startswith("cpu")


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the device that `Tensor.to` is asked for, None for a dtype or a tensor."""
    target = kwargs.get("device", args[1] if len(args) > 1 else None)
    if isinstance(target, torch.device) and not args[0].is_cpu:
        target = target.type
    return target if isinstance(target, str | torch.device) else None


def _to_host(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(_is_host(value) for value in (*args[1:], kwargs.get("device")))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
