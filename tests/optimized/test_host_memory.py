"""Tests of loops that take addresses, with numba and without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnproof.optimized.dispatch import INTERPRETED
from attnproof.optimized.host.addresses import element, int32_at, int64_at

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_arrays_at_an_address_share_the_tensors_memory(dtype):
    tensor = torch.tensor([3, -1, 2**31 - 1], dtype=dtype)
    wide = dtype is torch.int64
    words = (int64_at if wide else int32_at)(tensor.data_ptr(), 3)
    assert words.tolist() == tensor.tolist()
    words[1] = 7
    assert tensor.tolist() == [3, 7, 2**31 - 1]
    assert element(tensor.data_ptr(), 2, wide) == 2**31 - 1


def test_empty_arrays_need_no_memory():
    assert int32_at(0, 0).size == int64_at(0, 0).size == 0


@pytest.mark.skipif(INTERPRETED, reason="the interpreter lane does not run host loops")
def test_the_loops_run_where_numba_compiles_nothing():
    names = ("batch_split", "fast_prefill", "local_attention", "ubatch")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
            *(f"tests/optimized/test_{name}.py" for name in names),
        ],
        cwd=ROOT,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
