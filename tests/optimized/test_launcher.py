"""Tests that a resolved launch is Triton's launch, and what it costs, without a GPU.

Triton dispatches as on a GPU; its compiler and the compiled kernels are stand-ins.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnproof.optimized import dispatch

pytestmark = pytest.mark.skipif(dispatch.INTERPRETED, reason="the interpreter resolves nothing")

TOOLS = Path(__file__).parents[2] / "tools"
HOOKS = slice(6, 9)
"""Arguments of a compiled kernel: launch metadata and two hooks, which only Triton passes."""
WHOLE_STEP = "a whole step of 64 decodes"
MOST_CALLS = {
    WHOLE_STEP: 355,
    **dict.fromkeys(("decode_attention", "decode_attention of one request"), 145),
}
"""Function calls, Python's and C's, of an operation whose launches are resolved; others: 115."""
MOST_TENSORS = {
    "split_attn_metadata": 12,  # its children have eight views of the device's tensors
    WHOLE_STEP: 13,
    "reshape_and_cache_flash": 8,  # two for each view as words
}
"""Operators of PyTorch that an operation calls, each of which makes a tensor; others: 6."""


class CalledOperators(TorchDispatchMode):
    """Names of the operators of PyTorch that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, _types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


class Gpu:
    """Stand-in for Triton's driver, and for what it compiles and launches."""

    def __init__(self):
        self.device, self.stream, self.launched = 0, 7, []

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return f"stand-in {id(self)} {self.device}"  # Triton keeps versions by device

    def get_current_stream(self, _device):
        return self.stream

    def compile(self, kernel, key, signature, device, *_):
        """Return a compiled kernel that notes its launches, as `JITFunction._do_compile` does."""
        from triton.compiler import CompiledKernel

        compiled = object.__new__(CompiledKernel)
        compiled.src = compiled.name = compiled.metadata = None
        compiled.function, compiled.module = object(), object()
        compiled.packed_metadata = (signature, device)
        compiled._run = lambda *arguments: self.launched.append(arguments)
        kernel.device_caches[device][0][key] = compiled
        return compiled

    def launches_of(self, call):
        """Return the arguments of the compiled kernels that a call launches."""
        self.launched.clear()
        call()
        return list(self.launched)


@pytest.fixture
def gpu(monkeypatch):
    """The stand-in, which is Triton's active driver."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from attnproof.optimized.kernels import paged_attention_tiles as tiles

    gpu = Gpu()

    def compile_by_gpu(*arguments):
        return gpu.compile(*arguments)

    monkeypatch.setattr(driver, "_active", gpu)
    monkeypatch.setattr(JITFunction, "_do_compile", compile_by_gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (9, 0))
    processors = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _=None: processors)
    cached = (tiles.target_of, tiles._processors)
    for each in cached:
        each.cache_clear()
    yield gpu
    for each in cached:
        each.cache_clear()


@pytest.fixture
def kernel():
    """A kernel that is specialised for a pointer and a number, and not for two others."""
    from attnproof.optimized.kernels.versions import data_kernel

    return data_kernel("data", "count")(_copy)


def _copy(data, count, others, stride, PART):  # noqa: N803, as in kernels
    """Never runs."""


_copy.__annotations__["PART"] = "tl.constexpr"


def is_by_triton(launched):
    """True if Triton launched, False if the launcher did."""
    assert launched[HOOKS].count(None) in (0, 3)
    return launched[HOOKS].count(None) == 0


def comparable(launched):
    """Return the arguments but those that only Triton passes; tensors by what a kernel gets."""
    return [
        (value.data_ptr(), value.dtype) if isinstance(value, torch.Tensor) else (type(value), value)
        for value in (*launched[: HOOKS.start], *launched[HOOKS.stop :])
    ]


def test_a_resolved_launch_has_the_arguments_of_triton(gpu):
    from attnproof.optimized.kernels.launches import launches

    for name, call in launches().items():
        first, second = gpu.launches_of(call), gpu.launches_of(call)
        assert first, name
        assert not any(map(is_by_triton, second)), name
        assert list(map(comparable, first)) == list(map(comparable, second)), name


def test_another_stream_is_used_and_another_device_has_its_own_version(gpu):
    from attnproof.optimized.kernels.launches import launches

    call = launches()["slot mapping, int32"]
    (first,), gpu.stream = gpu.launches_of(call), 8
    (second,) = gpu.launches_of(call)
    assert (first[3], second[3], is_by_triton(second)) == (7, 8, False)
    gpu.device = 1
    (other,) = gpu.launches_of(call)
    assert is_by_triton(other)
    assert other[4] is not first[4]
    gpu.device = 0
    (again,) = gpu.launches_of(call)
    assert again[4] is first[4]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("slot mapping, int32", "slot mapping, int64"),
        ("cache write", "cache write, not aligned"),
        ("prefill, heads of 128", "prefill, not aligned"),
        ("prefill, heads of 128", "prefill of float16"),
    ],
)
def test_another_dtype_or_alignment_is_another_version(gpu, name, other):
    from attnproof.optimized.kernels.launches import launches

    (first,), (second,) = (gpu.launches_of(launches()[each]) for each in (name, other))
    assert is_by_triton(second)
    assert first[4] is not second[4]


def test_a_signature_is_one_version_of_triton(gpu, kernel):
    """Arguments with which Triton decides are in the signature, or Triton launches."""
    from attnproof.optimized.kernels import launcher

    memory = torch.empty(64, dtype=torch.int16, device="meta")
    pointers = (memory, memory[1:], memory.view(torch.uint8), memory.to(torch.int64), None)
    numbers = (0, 1, -1, 3, 16, 2**31 - 1, -(2**31), 2**31, 2**40, 2**63, True, 1.5, 16.0, None)
    device = gpu.get_current_device()
    for form in (kernel, kernel.unaligned):
        bind = form.device_caches[device][4]
        versions = {}
        for arguments in itertools.product(pointers, numbers, pointers, numbers):
            for part in (1, 16):
                signature = launcher._signature(form, device, arguments, {"PART": part})
                specialised = str(bind(*arguments, PART=part)[1:])
                assert versions.setdefault(signature, specialised) == specialised or not signature
        assert len(versions) > len(pointers) * len(pointers)


@pytest.mark.parametrize("number", [2**31, True])
def test_what_is_not_in_the_signature_is_launched_by_triton(gpu, kernel, number):
    from attnproof.optimized.kernels.launcher import launch

    data = torch.empty(4, device="meta")
    for _ in range(2):
        (launched,) = gpu.launches_of(
            lambda: launch(kernel, data.device, (1,), data, 4, data, number, PART=2)
        )
        assert is_by_triton(launched)


@pytest.mark.parametrize("watcher", ["hook", "run", "pre_run"])
def test_triton_launches_while_something_watches(gpu, kernel, watcher, monkeypatch):
    from triton import knobs
    from triton.runtime.jit import JITFunction

    from attnproof.optimized.kernels.launcher import launch

    data, seen, run = torch.empty(4, device="meta"), [], JITFunction.run

    def noting(*args, **kwargs):
        seen.append(args)
        return run(*args, **kwargs)

    def call():
        launch(kernel, data.device, (1,), data, 4, data, 1, PART=2)

    gpu.launches_of(call)
    assert not is_by_triton(*gpu.launches_of(call))
    with monkeypatch.context() as patches:
        if watcher == "hook":
            patches.setattr(knobs.runtime.launch_enter_hook, "calls", [seen.append])
        elif watcher == "run":
            patches.setattr(JITFunction, "run", noting)
        else:
            patches.setattr(kernel, "pre_run_hooks", [noting_hook(seen)])
        assert is_by_triton(*gpu.launches_of(call))
    assert seen or watcher == "hook"  # the compiled kernel, a stand-in here, calls it
    assert not is_by_triton(*gpu.launches_of(call))


def noting_hook(seen):
    """Return a hook that notes its arguments."""
    return lambda *args, **_: seen.append(args)


def calls_in(function):
    """Return the names of the Python and C functions that a call calls."""
    names = []

    def note(frame, event, what):
        if event in ("call", "c_call"):
            names.append(frame.f_code.co_name if event == "call" else what.__name__)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return names


@pytest.mark.parametrize("name", ["slot mapping, int32", "cache write", "prefill, heads of 128"])
def test_a_resolved_launch_makes_no_tensor(gpu, name):
    from attnproof.optimized.kernels.launches import launches

    call = launches()[name]
    gpu.launches_of(call)
    assert not {"empty", "view", "as_strided", "contiguous", "to"} & set(calls_in(call))


def test_operations_resolve_their_launches_and_make_few_calls(gpu, monkeypatch):
    """The operations are those whose cost `tools/host_costs.py` measures."""
    from attnproof.optimized.checking import checked

    monkeypatch.syspath_prepend(str(TOOLS))
    import host_calls

    with checked(False):
        for name, call, _ in host_calls.rows({}):
            assert gpu.launches_of(call), name
            assert not any(map(is_by_triton, gpu.launches_of(call))), name
            assert len(calls_in(call)) <= MOST_CALLS.get(name, 115), name
            with CalledOperators() as called:
                call()
            assert len(called.names) <= MOST_TENSORS.get(name, 6), (name, called.names)
