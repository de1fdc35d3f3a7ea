"""Stand-in for a CUDA device: CPU memory with the rules of a GPU's memory.

    TRITON_INTERPRET=1 python tests/fake_cuda.py verify --ops build_slot_mapping
    TRITON_INTERPRET=1 python tests/fake_cuda.py pytest -m gpu

Tensors "on cuda" report that device, do not mix with CPU tensors, cannot be converted to
numpy, and reading their values counts as a sync. Kernels run in Triton's interpreter. So
the code of the GPU lane runs without a GPU. Results of compiled kernels, races and real
waits are not tested.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

FLAG = "ATTNPROOF_FAKE_CUDA"
"""Environment variable that is set while the stand-in is installed."""
CUDA = torch.device("cuda", 0)
_state = SimpleNamespace(mode="default", warned=False)
_PROTOTYPE = (
    "Synchronization debug mode is a prototype feature and does not yet detect all "
    "synchronizing operations"
)
_pinned: set[int] = set()


class FakeCuda(torch.Tensor):
    """A tensor on the stand-in device."""

    device = property(lambda _self: CUDA)
    is_cuda = property(lambda _self: True)
    is_cpu = property(lambda _self: False)

    def get_device(self) -> int:
        return 0

    def __deepcopy__(self, _memo: object) -> torch.Tensor:
        return self.clone()


# Functions whose result the host needs, so PyTorch waits for the device.
_READS = {
    torch.Tensor.item,
    torch.Tensor.tolist,
    torch.Tensor.nonzero,
    torch.Tensor.unique,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
    torch.Tensor.equal,
    torch.Tensor.allclose,
    torch.nonzero,
    torch.unique,
    torch.equal,
    torch.allclose,
    torch.repeat_interleave,
    torch.Tensor.repeat_interleave,
}
# Functions that accept tensors of both devices.
_MIXES = {torch.Tensor.copy_, torch.Tensor.set_, torch.Tensor.__repr__}


def wait() -> None:
    """Count a sync: raise an error in the sync debug mode "error", as PyTorch does."""
    if _state.mode in ("error", 2):
        raise RuntimeError("called a synchronizing CUDA operation")


class FakeDevice(TorchFunctionMode):
    """Mode that creates and copies tensors of the stand-in device and checks their use."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return _run(func, args, kwargs)


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func in (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda):
        return _moved(func, args, kwargs)
    if func is torch.Tensor.__deepcopy__:  # its memo holds tensors of both devices
        return func(*args)
    if func is torch.Tensor.is_pinned:
        return not isinstance(args[0], FakeCuda) and _is_pinned(args[0])
    tensors = list(_tensors((args, kwargs)))
    on_device = any(isinstance(tensor, FakeCuda) for tensor in tensors)
    if func in (torch.Tensor.numpy, torch.Tensor.__array__) and on_device:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    if func is torch.Tensor.copy_:
        _watch_copy(*args[:2], kwargs.get("non_blocking", False))
    elif func is torch.Tensor.__setitem__ and not list(_tensors(args[1])):
        if isinstance(args[2], torch.Tensor):  # a copy, which may cross devices
            _watch_copy(args[0], args[2], False)
        return func(*args)
    elif on_device and (func in _READS or _is_masked(func, args)):
        wait()
    asked = kwargs.get("device")
    if asked is not None and "device" in kwargs:
        kwargs["device"] = "cpu"
        on_device = torch.device(asked).type == "cuda"
        if on_device and func is torch.tensor:
            wait()
    elif on_device and func not in _MIXES:
        _require_one_device(func, args, tensors)
    pinned = kwargs.pop("pin_memory", False)
    result = func(*args, **kwargs)
    if pinned:
        _pinned.add(result.untyped_storage().data_ptr())
    return _on_device(result) if on_device else result


def _moved(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of `to`, `cpu` or `cuda`: a copy if device or dtype differ."""
    tensor, *others = args
    was_there = isinstance(tensor, FakeCuda)
    target = None if func is torch.Tensor.to else func.__name__
    names = [other for other in others if isinstance(other, str | torch.device)]
    target = kwargs.get("device", names[0] if names else target)
    if target is not None and torch.device(target).type == "meta":
        return func(*args, **kwargs)
    if target is None:
        example = others[0] if others and isinstance(others[0], torch.Tensor) else tensor
        to_device = isinstance(example, FakeCuda)
    else:
        to_device = torch.device(target).type == "cuda"
    others = ["cpu" if isinstance(other, str | torch.device) else other for other in others]
    kwargs = {k: "cpu" if k == "device" else v for k, v in kwargs.items()}
    moves = was_there != to_device
    if moves and (not to_device or not _is_pinned(tensor)):
        wait()
    plain = tensor.as_subclass(torch.Tensor)
    moved = plain.to(*others, **kwargs) if func is torch.Tensor.to else plain
    if moved.data_ptr() == plain.data_ptr() and moved.dtype == plain.dtype:
        if not moves:
            return tensor
        moved = plain.clone()
    return _on_device(moved) if to_device else moved


def _watch_copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> None:
    """Count a sync for a copy between devices that is not asynchronous."""
    there, comes_from_there = isinstance(target, FakeCuda), isinstance(source, FakeCuda)
    if there != comes_from_there and source.ndim:
        host = source if there else target
        if not (non_blocking and _is_pinned(host)):
            wait()


def _is_pinned(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().data_ptr() in _pinned


def _is_masked(func: Any, args: tuple[Any, ...]) -> bool:
    """True for indexing with a boolean mask, whose result has a shape that depends on values."""
    if func is not torch.Tensor.__getitem__:
        return False
    return any(tensor.dtype in (torch.bool, torch.uint8) for tensor in _tensors(args[1]))


def _require_one_device(func: Any, args: tuple[Any, ...], tensors: list[torch.Tensor]) -> None:
    indexes = func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
    if indexes and isinstance(args[0], FakeCuda):
        return
    if any(not isinstance(tensor, FakeCuda) and tensor.ndim for tensor in tensors):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, cuda:0 and cpu: {func.__name__}"
        )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _on_device(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if isinstance(value, FakeCuda) else value.as_subclass(FakeCuda)
    if type(value) in (list, tuple):
        return type(value)(_on_device(item) for item in value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return value
    return value


class _Stream:
    cuda_stream = 0

    def synchronize(self) -> None:
        wait()

    def wait_stream(self, _other: object) -> None:
        pass

    def record_event(self, event: object = None) -> object:
        return event


class _Event:
    def __init__(self, **_: object) -> None:
        self.at = 0.0

    def record(self, _stream: object = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        wait()

    def elapsed_time(self, later: _Event) -> float:
        return max((later.at - self.at) * 1e3, 1e-6)


def install() -> None:
    """Replace `torch.cuda` by the stand-in in this process and its forks, permanently."""

    def set_mode(mode: str) -> None:
        if not _state.warned:  # PyTorch warns once in a process
            _state.warned = True
            warnings.warn(_PROTOTYPE, UserWarning, stacklevel=2)
        _state.mode = mode

    properties = SimpleNamespace(
        name="no GPU at all", multi_processor_count=4, total_memory=1 << 34, L2_cache_size=1 << 16
    )
    fakes: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "current_stream": lambda _device=None: _Stream(),
        "default_stream": lambda _device=None: _Stream(),
        "Stream": lambda *_args, **_kwargs: _Stream(),
        "stream": lambda _stream: nullcontext(),
        "device": lambda _device: nullcontext(),
        "synchronize": lambda _device=None: None,
        "set_sync_debug_mode": set_mode,
        "get_sync_debug_mode": lambda: _state.mode,
        "get_device_name": lambda _device=None: properties.name,
        "get_device_properties": lambda _device=None: properties,
        "get_device_capability": lambda _device=None: (9, 0),
        "empty_cache": lambda: None,
        "mem_get_info": lambda _device=None: (1 << 33, 1 << 34),
        "Event": _Event,
        "_sleep": lambda _cycles: None,
    }
    for name, fake in fakes.items():
        setattr(torch.cuda, name, fake)
    FakeDevice().__enter__()


def _verify(arguments: list[str]) -> None:
    """Run a verb of the command line on the stand-in device."""
    from attnproof.harness.operations import ALL
    from attnproof.harness.running import devices
    from attnproof.harness.running.parent import environment
    from attnproof.harness.running.worker import worker
    from attnproof.harness.verbs import verification

    for module in (environment, devices, verification):
        module.gpu_name = lambda: "no GPU at all"
    for operation in ALL.values():  # real sizes take too long in the interpreter
        object.__setattr__(operation.inputs, "large", tuple)
    worker.enter_lane = lambda _candidate: None  # keep Triton's interpreter
    from attnproof.harness.cli import main

    sys.argv = ["attnproof", *arguments, "--device", "cuda"]
    main()


def main() -> None:
    """Run a verb, pytest or a script on the stand-in device."""
    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1: kernels need it"
    os.environ[FLAG] = "1"
    sys.path.insert(0, str(Path(__file__).parents[1]))
    install()
    from attnproof.harness.running.worker.interpreter import (
        skip_discarded_checks,
        skip_repeated_work,
    )

    skip_discarded_checks()
    skip_repeated_work()
    what, *arguments = sys.argv[1:]
    if what == "pytest":
        import pytest

        sys.exit(pytest.main(arguments))
    if what.endswith(".py"):
        import runpy

        sys.argv = [what, *arguments]
        sys.path.insert(0, str(Path(what).parent))
        runpy.run_path(what, run_name="__main__")
    else:
        _verify([what, *arguments])


if __name__ == "__main__":
    main()
