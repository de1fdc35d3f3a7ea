"""Tests of the lane, of imports, and all tests of this folder in the interpreter lane."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnproof import optimized
from attnproof.optimized import dispatch

ROOT = Path(__file__).parents[2]


def _python(*arguments: str, interpret: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TRITON_INTERPRET": interpret}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_importing_is_cheap():
    loaded = "{'numba', 'triton'} & set(sys.modules)"
    done = _python("-c", f"import sys, attnproof.optimized; print({loaded})", interpret="1")
    assert done.stdout.strip() == "set()", done.stderr


def test_the_environment_selects_the_lane_of_cpu_tensors():
    assert dispatch.on_device(torch.zeros(1)) is dispatch.INTERPRETED
    assert dispatch.on_device(torch.zeros(1, device="meta"))


@pytest.mark.lanes
@pytest.mark.skipif(dispatch.INTERPRETED, reason="this is the interpreter lane")
def test_the_interpreter_lane_passes_these_tests():
    done = _python(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/optimized"), interpret="1"
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.skipif(not dispatch.INTERPRETED, reason="kernels need the interpreter or a GPU")
def test_kernels_do_run_in_the_interpreter_lane():
    offsets, table = torch.tensor([0, 1]), torch.tensor([[3]])
    optimized.build_slot_mapping(offsets, torch.tensor([0]), table, 4)
    kernel = sys.modules["attnproof.optimized.kernels.slot_mapping"]._slot_mapping_kernel
    assert type(kernel).__name__ == "InterpretedFunction"
