"""Launch a kernel, by Triton for the first launch of a signature and then without its dispatch.

Triton decides at each launch in Python which version its arguments need, which takes longer
than everything else on the host. The version depends on the signature alone: dtypes, compile-time
constants, alignment of the pointers for which a kernel is specialised. A signature that Triton
has launched is launched by what Triton compiled, with the same arguments.

Triton launches itself where anything else may matter: in the interpreter, on AMD, in a version
that was not tried, with a hook, with integers beyond 32 bits.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
from triton import knobs
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from ..dispatch import INTERPRETED, launching_on

_TRIED: Final = ("3.6.", "3.7.")
"""Versions of Triton whose `JITFunction.run` was read and compared with `launch`."""
_RUN: Final = JITFunction.run
_RESOLVES: Final = (
    not INTERPRETED
    and triton.__version__.startswith(_TRIED)
    and _RUN.__module__ == JITFunction.__module__
)
_ALIGNMENT: Final = 16
"""Multiples of bytes, or of an integer, for which Triton specialises a version."""
_TENSOR: Final = torch.Tensor
_LEAST, _BEYOND = -(2**31), 2**31


def cdiv(size: int, part: int) -> int:
    """Return the number of parts that hold `size`: 10 ns, of which `triton.cdiv` takes 3 µs."""
    return -(-size // part)


def launch(
    kernel: Any, device: torch.device, grid: tuple[int, ...], *arguments: Any, **constants: Any
) -> None:
    """Launch a kernel of `versions` on `device`: its arguments, then constants and options."""
    if not _RESOLVES:
        with launching_on(device):
            kernel[grid](*arguments, **constants)
        return
    current = driver.active.get_current_device()
    if device.index == current or device.type != "cuda":
        _launch(kernel, current, grid, arguments, constants)
        return
    with torch.cuda.device(device):
        current = driver.active.get_current_device()
        _launch(kernel, current, grid, arguments, constants)


def _launch(
    kernel: Any,
    device: Any,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    constants: dict[str, Any],
) -> None:
    """Launch on the current device."""
    signature = None if _is_watched(kernel) else _signature(kernel, device, arguments, constants)
    resolved = kernel.resolved.get(signature)
    if resolved is None:
        compiled = kernel.run(*arguments, grid=grid, warmup=False, **constants)
        if signature is not None:
            _resolve(kernel, device, signature, compiled, len(arguments), constants)
        return
    run, function, metadata, values = resolved
    x, y, z = (*grid, 1, 1)[:3]
    stream = driver.active.get_current_stream(device)
    run(x, y, z, stream, function, metadata, None, None, None, *arguments, *values)


def _is_watched(kernel: Any) -> bool:
    """True if something observes or changes launches, which only Triton's own calls."""
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    return bool(
        JITFunction.run is not _RUN
        or kernel.pre_run_hooks
        or getattr(enter, "calls", enter)
        or getattr(leave, "calls", leave)
        or runtime.add_stages_inspection_hook
    )


def _signature(
    kernel: Any, device: Any, arguments: tuple[Any, ...], constants: dict[str, Any]
) -> tuple[Any, ...] | None:
    """Return all that decides about the version of a launch, None if Triton has to decide."""
    kinds = [device, knobs.runtime.debug, knobs.compilation.instrumentation_mode]
    for argument in arguments:
        kind = type(argument)
        if kind is int:
            if not _LEAST <= argument < _BEYOND:
                return None
        elif kind is _TENSOR:
            kind = argument.dtype
        elif kind is not float and argument is not None:
            return None
        kinds.append(kind)
    for index in kernel.specialised:
        argument = arguments[index]
        if type(argument) is int:
            kinds += argument == 1, argument % _ALIGNMENT == 0
        elif type(argument) is _TENSOR:
            kinds.append(argument.data_ptr() % _ALIGNMENT == 0)
    return (*kinds, *constants, *constants.values())


def _resolve(
    kernel: Any,
    device: Any,
    signature: tuple[Any, ...],
    compiled: Any,
    count: int,
    constants: dict[str, Any],
) -> None:
    """Keep the launcher of a signature, if later launches can only be those of Triton."""
    names = kernel.arg_names[count:]
    nvidia = kernel.device_caches[device][2].backend == "cuda"
    if nvidia and isinstance(compiled, CompiledKernel) and constants.keys() >= set(names):
        values = tuple([constants[name] for name in names])
        handles = compiled.run, compiled.function, compiled.packed_metadata
        kernel.resolved[signature] = (*handles, values)
