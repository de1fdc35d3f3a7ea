"""The interpreter computes overflow checks only if their assertions are on."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
from dataclasses import replace
from attnproof.harness.running.worker.interpreter import skip_discarded_checks
from triton.runtime.interpreter import interpreter_builder as builder
builder.options = replace(builder.options, debug={debug})
skip_discarded_checks()
print(builder.options.sanitize_overflow)
"""
KERNEL = """
import sys
import torch, triton
import triton.language as tl
from attnproof.harness.running.worker.interpreter import skip_repeated_work
if sys.argv[1:]:
    skip_repeated_work()

@triton.jit
def half(x, factor: tl.constexpr):
    return (x * factor) // 2

@triton.jit
def mix(ids, scores, out, count, stride, SIZE: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, SIZE)
    inside = columns < count
    one = tl.load(ids + row * stride + columns, mask=inside, other=-1)
    matrix = one[:, None].to(tl.int64) + tl.arange(0, SIZE)[None, :]
    matrix = tl.where((matrix > 3) & inside[:, None], half(matrix, 3), -matrix)
    score = tl.load(scores + columns, mask=inside, other=0.0)
    weights = tl.exp(score - tl.max(score, axis=0))
    mixed = tl.sum(matrix.to(tl.float32) * weights[None, :], axis=1)
    last = (WIDE + row).to(tl.int64) * 2**20
    for step in range(2):
        last += tl.load(ids + step)
    tl.store(out + row * SIZE + columns, mixed + last.to(tl.float32), mask=inside)
    tl.atomic_add(out + columns, 1.0, mask=columns < 1)
    pointers = ids + row * stride + columns
    tl.store(tl.where(inside, pointers, ids), one + 1, mask=inside & (one >= 0))

ids = torch.arange(24, dtype=torch.int32).view(3, 8)
out = torch.zeros(3, 8)
mix[(3,)](ids, torch.linspace(-1, 1, 8), out, 6, 8, 8, 2**11)
mix[(2,)](ids, torch.linspace(-1, 1, 8).half(), out, 7, 8, 8, 5)
print(out.tolist(), ids.tolist())
"""


def test_results_with_the_patches_are_those_without(tmp_path):
    (tmp_path / "kernel.py").write_text(KERNEL, encoding="utf-8")
    texts = [
        subprocess.run(
            [sys.executable, tmp_path / "kernel.py", *options],
            env=os.environ | {"TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for options in ([], ["patched"])
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("debug", [False, True])
def test_overflow_checks(debug):
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    program = [sys.executable, "-c", PROGRAM.format(debug=debug)]
    ran = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(debug)
