"""Exact costs of small functions with known costs."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from attnproof.harness.timing.process.counters import count, launches_and_waits

GIVEN = torch.arange(600)
FLAG = "ATTNPROOF_FAKE_CUDA"
HALF = torch.arange(600, dtype=torch.int32)
KEPT = np.zeros(10)
INPUT = torch.zeros(4)


@pytest.mark.parametrize(
    ("call", "allocations", "nbytes", "dispatches"),
    [
        (lambda: None, 0, 0, 0),
        (lambda: torch.empty(3), 1, 12, 1),
        (lambda: torch.empty(0), 0, 0, 1),
        (lambda: GIVEN + 1, 1, 4800, 1),
        (lambda: GIVEN[1:], 0, 0, 1),
        (lambda: GIVEN.view(2, 300)[1], 0, 0, 2),
        (lambda: torch.tensor([1, 2]), 1, 16, 1),
        (lambda: torch.from_numpy(np.arange(5)), 1, 40, 1),
        (lambda: torch.from_numpy(KEPT), 0, 0, 1),  # of an earlier call
        (lambda: torch.from_numpy(GIVEN.numpy()[3:]), 0, 0, 2),  # memory of a tensor
        (lambda: [torch.empty(1000) for _ in range(5)] and None, 5, 20000, 5),
        (lambda: torch.cat([GIVEN, GIVEN]), 1, 9600, 1),
        (GIVEN.tolist, 0, 0, 0),
    ],
)
def test_allocations_and_dispatches(call, allocations, nbytes, dispatches):
    found = count(lambda: call, "cpu")
    assert (found.allocations, found.allocated_bytes) == (allocations, nbytes)
    assert found.dispatches == dispatches
    assert (found.copies, found.copied_bytes) == (0, 0)
    assert (found.launches, found.syncs) == (None, None)


@pytest.mark.parametrize(
    ("call", "copies", "nbytes", "allocations"),
    [
        (lambda: GIVEN.to(torch.int32), 1, 2400, 1),
        (lambda: GIVEN.to(torch.int64), 0, 0, 0),  # is already
        (GIVEN.clone, 1, 4800, 1),
        (GIVEN[::2].contiguous, 1, 2400, 1),
        (GIVEN.contiguous, 0, 0, 0),
        (lambda: HALF.copy_(GIVEN), 1, 2400, 0),
    ],
)
def test_copies(call, copies, nbytes, allocations):
    found = count(lambda: call, "cpu")
    assert (found.copies, found.copied_bytes) == (copies, nbytes)
    assert found.allocations == allocations


def test_counts_are_the_same_each_time():
    def call() -> list[torch.Tensor]:
        return [(GIVEN + number)[::2].contiguous() for number in range(20)]

    assert len({count(lambda: call, "cpu") for _ in range(20)}) == 1


def test_caches_of_the_first_call_are_not_counted():
    buffer: list[torch.Tensor] = []

    def call() -> torch.Tensor:
        if not buffer:
            buffer.append(torch.empty(100))
        return buffer[0]

    assert count(lambda: call, "cpu").allocations == 0


def test_each_counted_call_is_made_anew():
    runs: list[int] = []

    def make():
        runs.append(0)
        place = len(runs) - 1

        def call() -> None:
            runs[place] += 1
            INPUT.add_(1)

        return call

    assert count(make, "cpu").dispatches == 1
    assert runs == [1, 1, 1]


def event(name: str, start: float, device: str = "CPU") -> SimpleNamespace:
    """An event as the profiler reports it."""
    return SimpleNamespace(
        name=name,
        device_type=SimpleNamespace(name=device),
        time_range=SimpleNamespace(start=start, end=start + 10),
    )


def test_launches_and_waits_of_a_profile():
    events = [
        event("cudaDeviceSynchronize", 0),
        event("attnproof: the call", 100),
        event("cudaLaunchKernel", 101),
        event("cudaStreamSynchronize", 103),
        event("cudaMemcpyAsync", 104),
        event("cudaDeviceSynchronize", 200),
        event("attnproof: the call", 150, "CUDA"),
        event("write_slots", 155, "CUDA"),
        event("void at::native::vectorized_elementwise_kernel", 300, "CUDA"),
        event("Memcpy HtoD (Pageable -> Device)", 310, "CUDA"),
        event("Memset (Device)", 320, "CUDA"),
    ]
    assert launches_and_waits(events) == (2, 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.skipif(FLAG in os.environ, reason="a profiler sees nothing of a fake device")
def test_launches_and_waits_on_a_gpu():
    given = torch.arange(100, device="cuda")
    assert count(lambda: lambda: given + 1, "cuda").launches == 1
    found = count(lambda: lambda: (given + 1).sum().item(), "cuda")
    assert found.syncs is not None
    assert found.syncs >= 1


def test_counting_does_not_import_the_compiler_of_torch():
    """It takes seconds of the first timing."""
    script = (
        "import sys, torch\n"
        "from attnproof.harness.timing.process.counters import count\n"
        "print(count(lambda: lambda: torch.empty(3), 'cpu').dispatches)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]
