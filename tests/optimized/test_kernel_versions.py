"""Tests that the steps of an engine compile no kernel that an earlier step has not.

No GPU is needed: Triton decides from the arguments alone whether a launch needs a new version.
"""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from attnproof.optimized import dispatch

pytestmark = pytest.mark.skipif(dispatch.INTERPRETED, reason="the interpreter compiles nothing")

TOOL = Path(__file__).parents[2] / "tools" / "kernel_resources.py"
STEPS = ((1, 1, 0), (2, 15, 1), (15, 16, 3), (16, 17, 0), (17, 4000, 1))
"""Requests and tokens of each step, and the element of a buffer at which its metadata starts."""
FOLDER = "attnproof.optimized.kernels"
SIZES = ("launches", "drafter_launches", "runner_launches", "pages_launches")
"""Modules of the folder whose launches have these sizes."""


@pytest.fixture
def versions():
    """Function from launches by name to the versions of each kernel, by launch and kernel."""
    from triton.backends.compiler import GPUTarget

    spec = importlib.util.spec_from_file_location("kernel_resources", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    found = defaultdict(set)

    def add(launches):
        for name, launch in launches.items():
            for kernel, (source, options) in tool.recorded(
                launch, GPUTarget("cuda", 90, 32)
            ).items():
                version = (source.signature, source.constants, source.attrs, options)
                found[name, kernel].add(repr(version))
        return found

    return add


@pytest.fixture
def step(monkeypatch):
    """Function that gives all launches the sizes of a step."""
    empty = torch.empty

    def set_sizes(requests, tokens, start):
        def empty_behind(*shape, dtype, **more):
            shape = shape[0] if isinstance(shape[0], list | tuple) else shape
            first = 0 if dtype.is_floating_point or dtype == torch.uint8 else start
            whole = empty(math.prod(shape) + first, dtype=dtype, **more)
            return whole[first:].view(shape)

        monkeypatch.setattr(torch, "empty", empty_behind)
        for module in SIZES:
            launches = importlib.import_module(f"{FOLDER}.{module}")
            monkeypatch.setattr(launches, "_REQUESTS", requests)
            monkeypatch.setattr(launches, "_TOKENS", tokens)

    return set_sizes


def test_a_step_compiles_nothing(versions, step):
    from attnproof.optimized.kernels.launches import launches

    for sizes in STEPS:
        step(*sizes)
        found = versions(launches())
    assert {launch: len(each) for launch, each in found.items() if len(each) > 1} == {}


@pytest.mark.parametrize(
    ("queries", "kernels"),
    [((0,), 2), ((1, 2, 3, 4), 2), ((1, 4, 5, 8, 16, 17, 2048), 8)],
    ids=["decodes", "decodes and drafts", "all steps"],
)
def test_attention_has_a_version_for_each_tile_of_queries(versions, queries, kernels):
    from attnproof.optimized.kernels import launches

    for of_each in queries:
        for rows in (1, 2, 15, 16, 17, 600):
            found = versions({"attention": launches._attend(of_each, rows=rows)})
    assert len(found["attention", "attend_kernel"]) == kernels
    assert len(found["attention", "merge_kernel"]) == 1


def test_unaligned_data_has_one_more_version(versions):
    from attnproof.optimized.kernels import launches

    for aligned in (True, False):
        found = versions({"attention": launches._attend(2048, aligned=aligned)})
    assert len(found["attention", "attend_kernel"]) == 2


def test_each_dtype_is_a_version(versions):
    """The versions are counted: other dtypes need other code."""
    from attnproof.optimized.kernels import launches

    for dtype in (torch.float16, torch.bfloat16):
        found = versions({"attention": launches._attend(2048, dtype=dtype)})
    assert len(found["attention", "attend_kernel"]) == 2
