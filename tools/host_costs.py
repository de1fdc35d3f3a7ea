"""Measure what operations on a device cost the host, without a GPU.

    python tools/host_costs.py                           operations of attnproof.optimized
    PYTHONPATH=VLLM python tools/host_costs.py           and those of vLLM (source, release 0.33)

Triton compiles and launches the kernels as on an H100, with its own driver. The CUDA library
below it has empty functions, made with the C compiler that Triton needs; tensors are on
torch's device "meta". So the times include Python, PyTorch's views and tensors, and all of
Triton; on a GPU the calls into CUDA come on top: launches, allocations and copies, the address
of each pointer, the current device and stream.

Prints medians of interleaved calls in microseconds: the whole call without checks, the launches
in it, the whole call when Triton launches by itself, the time that checks add, and vLLM's
function for the same. Left out: operations that read values of the device, or call PyTorch's
operators for it, whose cost on "meta" is another.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_CUDA = """
static long word;
#define OK(name) int name() { return 0; }
#define HANDLE(name) int name(void **out) { *out = &word; return 0; }
#define NUMBER(name, value) int name(int *out) { *out = value; return 0; }
int cuPointerGetAttribute(long *out, int which, long of) { *out = of; return 0; }
HANDLE(cuCtxGetCurrent) HANDLE(cuModuleLoadData) HANDLE(cuModuleGetFunction)
NUMBER(cuDeviceGetAttribute, 232448) NUMBER(cuFuncGetAttribute, 1024)
OK(cuLaunchKernelEx) OK(cuCtxSetCurrent) OK(cuDeviceGet) OK(cuDevicePrimaryCtxRetain)
OK(cuCtxGetLimit) OK(cuCtxSetLimit) OK(cuFuncSetAttribute) OK(cuFuncSetCacheConfig)
OK(cuGetErrorString) OK(cuDriverGetVersion) OK(cuOccupancyMaxActiveClusters)
OK(cuTensorMapEncodeIm2col) OK(cuTensorMapEncodeTiled)
"""

_TURN = 100
"""Calls in one mode before the next one."""
Thunk = Callable[[], object]


def install_cuda(folder: str) -> None:
    """Give Triton an H100 whose CUDA library does nothing."""
    source, library = Path(folder, "cuda.c"), Path(folder, "libcuda.so.1")
    source.write_text(_CUDA, encoding="utf-8")
    command = [
        os.environ.get("CC", "cc"),
        "-w",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
        source,
        "-o",
        library,
    ]
    subprocess.run(command, check=True)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    os.environ["TRITON_LIBCUDA_PATH"] = folder
    torch.cuda.get_device_capability = lambda _=None: (9, 0)
    properties = SimpleNamespace(multi_processor_count=132)
    torch.cuda.get_device_properties = lambda _=None: properties
    torch.cuda.current_device = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda _: 0
    from triton.backends.nvidia.driver import CudaDriver
    from triton.runtime import driver

    driver.set_active(CudaDriver())


@contextmanager
def no_launches() -> Iterator[None]:
    """Return a context in which our kernels are not launched."""
    prefix = "attnproof.optimized.kernels."
    modules = [module for name, module in sys.modules.items() if name.startswith(prefix)]
    with ExitStack() as stack:
        for module in modules:
            if hasattr(module, "launch"):
                stack.enter_context(patch.object(module, "launch", lambda *_, **__: None))
        yield


def medians(ours: Thunk, theirs: Thunk | None, calls: int) -> dict[str, float]:
    """Return the median time of a call in each mode, in microseconds; the modes take turns."""
    from attnproof.optimized.checking import checked
    from attnproof.optimized.kernels import launcher

    modes: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Thunk]] = {
        "call": (nullcontext, ours),
        "without launches": (no_launches, ours),
        "by Triton": (lambda: patch.object(launcher, "_RESOLVES", False), ours),
        "with checks": (checked, ours),
    }
    if theirs is not None:
        modes["vLLM"] = (nullcontext, theirs)
    samples: dict[str, list[int]] = {mode: [] for mode in modes}
    for _ in range(max(1, calls // _TURN)):
        for mode, (context, call) in modes.items():
            with context():
                call()  # the first one compiles, and in each turn this one is slow
                samples[mode] += [_nanoseconds(call) for _ in range(_TURN)]
    return {mode: statistics.median(times) / 1e3 for mode, times in samples.items()}


def _nanoseconds(call: Thunk) -> int:
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Measure what operations cost the host.")
    parser.add_argument("--calls", type=int, default=2000, help="calls of each function")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        install_cuda(folder)
        from host_calls import of_vllm, rows

        vllm = of_vllm() if importlib.util.find_spec("vllm") else {}
        print(f"{'us a call':46}  call launch  by Triton  checks   vLLM")
        for name, ours, theirs in rows(vllm):
            times = medians(ours, theirs, options.calls)
            call = times["call"]
            launch, checks = call - times["without launches"], times["with checks"] - call
            others = f"{times['by Triton']:11.1f}{checks:8.1f}{times.get('vLLM', math.nan):7.1f}"
            print(f"{name:46}{call:6.1f}{launch:7.1f}{others}", flush=True)


if __name__ == "__main__":
    main()
