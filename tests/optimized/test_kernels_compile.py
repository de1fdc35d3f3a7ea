"""Tests that every kernel compiles for each architecture with no more resources than before.

No GPU is needed. The interpreter forgives what the compiler does not: types that change
in a loop or differ between branches.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnproof.optimized import dispatch

pytestmark = [
    pytest.mark.lanes,
    pytest.mark.skipif(dispatch.INTERPRETED, reason="the interpreter replaces the compiler"),
]

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "kernel_resources.py"
ROW = ("some_kernel", "a launch", "sm_90")
COST = {"registers": 30, "stack_bytes": 0, "shared_bytes": 1024, "code_bytes": 1000}
SHARED_LIMITS = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10, "gfx942": 64 << 10}
"""Limit of a program's shared memory by target, in bytes."""
CHANGES_ITS_TYPE = """
import triton
import triton.language as tl

@triton.jit
def sums_kernel(numbers, out, count):
    total = 0
    for i in range(count):
        total += tl.load(numbers + i)
    tl.store(out, total)
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("kernel_resources", TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_launch_uses_the_resources_in_the_table():
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(TOOL)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"registers": 32}, None),
        ({"registers": 33}, "registers 33, was 30"),
        ({"registers": 12, "shared_bytes": 0, "code_bytes": 100}, None),
        ({"stack_bytes": 8}, "stack_bytes 8, was 0"),
        ({"spilled_registers": 1}, "spilled_registers 1, was 0"),
        ({"shared_bytes": 1025}, "shared_bytes 1025, was 1024"),
        ({"code_bytes": 1100}, None),
        ({"code_bytes": 1101}, "code_bytes 1101, was 1000"),
    ],
)
def test_changes_that_are_problems(tool, change, problem):
    problems = tool.compare({ROW: COST}, {ROW: COST | change})
    assert problems == ([f"some_kernel (a launch) on sm_90: {problem}"] if problem else [])


def test_rows_in_only_one_of_the_tables_are_problems(tool):
    other = ("some_kernel", "another launch", "sm_90")
    assert tool.compare({ROW: COST}, {other: COST}) == [
        "some_kernel (a launch) on sm_90: in the table and never launched",
        "some_kernel (another launch) on sm_90: not in the table",
    ]


def test_the_table_is_written_sorted(tool, tmp_path):
    version, costs = tool.read_table()
    again = tmp_path / "table.json"
    tool.write_table(version, dict(reversed(costs.items())), again)
    assert again.read_bytes() == tool.TABLE.read_bytes()


def test_shared_memory_is_within_the_limit(tool):
    for row, cost in tool.read_table()[1].items():
        assert cost["shared_bytes"] <= SHARED_LIMITS[row[-1]], row


def test_a_kernel_that_only_the_interpreter_accepts_is_an_error(tool, tmp_path, monkeypatch):
    import triton
    from triton.backends.compiler import GPUTarget

    monkeypatch.syspath_prepend(tmp_path)
    for name in ("compiled_sums", "interpreted_sums"):
        (tmp_path / f"{name}.py").write_text(CHANGES_ITS_TYPE, encoding="utf-8")
    numbers, out = torch.tensor([0.5, 0.25]), torch.zeros(1)
    with monkeypatch.context() as interpreting:
        interpreting.setattr(triton.knobs.runtime, "interpret", True)
        importlib.import_module("interpreted_sums").sums_kernel[(1,)](numbers, out, 2)
    assert out.item() == 0.75

    kernel, target = importlib.import_module("compiled_sums").sums_kernel, GPUTarget("cuda", 90, 32)
    asked = tool.recorded(lambda: kernel[(1,)](numbers.to("meta"), out.to("meta"), 7), target)
    source, options = asked["sums_kernel"]
    with pytest.raises(triton.CompilationError, match="total"):
        triton.compile(source, target=target, options=options)
