"""Host functions on the CPU and kernels in Triton's interpreter, in one run."""

from __future__ import annotations

import json
import re
import shlex
import sys
from functools import lru_cache, partial
from types import SimpleNamespace

import pytest

from attnproof.harness.running.worker.kernel_names import names_kernel

pytest.importorskip("triton")

OPS = "--ops=slice_query_start_locs,compute_token_to_req_indices"
QUICK = (OPS, "--depth=quick", "--no-vary", "--no-remember", "--out=o", "--candidate=mixed.py")
KERNELS = """
import triton
import triton.language as tl

@triton.autotune([triton.Config({"BLOCK": 16})], key=[])
@triton.jit
def _request_indices(starts, out, stride, SHIFT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    last = tl.load(starts + row + 1)
    for first in range(tl.load(starts + row), last, BLOCK):
        token = first + tl.arange(0, BLOCK)
        tl.store(out + token * stride, row + SHIFT, mask=token < last)

def launch(starts, out, rows):
    _request_indices[(rows,)](starts, out, out.stride(0), SHIFT=0)
"""
MIXED = """
import kernels

def slice_query_start_locs(query_start_loc, request_slice):
    part = query_start_loc[request_slice.start : request_slice.stop + 1]
    return part - query_start_loc[request_slice.start]

def compute_token_to_req_indices(query_start_loc, out, num_mapped_tokens, num_tokens):
    rows = len(query_start_loc) - 1
    out[num_mapped_tokens:num_tokens] = 0
    if rows and num_mapped_tokens:
        kernels.launch(query_start_loc.contiguous(), out[:num_mapped_tokens], rows)
    return out[:num_tokens]
"""
LAUNCHES = "compute_token_to_req_indices of mixed: launches Triton: judged in the interpreter"


TRUSTING = """
import triton
import triton.language as tl

@triton.jit
def _rows(starts, out, rows, mapped, tokens, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    first, end = mapped, tokens
    if row < rows:
        first, end = tl.load(starts + row), tl.load(starts + row + 1)
    for base in range(first, end, BLOCK):
        token = base + tl.arange(0, BLOCK)
        tl.store(out + token, tl.where(row < rows, row, 0), mask=token < end)

def compute_token_to_req_indices(query_start_loc, out, num_mapped_tokens, num_tokens):
    rows = len(query_start_loc) - 1
    _rows[(rows + 1,)](query_start_loc, out, rows, num_mapped_tokens, num_tokens, BLOCK=64)
    return out[:num_tokens]
"""
"""A kernel without strides: tensors with gaps give it wrong bounds, up to 2**31."""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "mixed.py").write_text(MIXED)
    return tmp_path


def devices(folder):
    operations = json.loads((folder / "o/summary.json").read_text())["operations"]
    return {one["name"]: (one["device"], one["verdict"]) for one in operations}


@pytest.mark.lanes
def test_each_function_is_judged_where_it_runs(attnproof, folder):
    done = attnproof("verify", *QUICK, cwd=folder)
    assert (done.returncode, done.stdout.count(LAUNCHES)) == (0, 1), done.stdout + done.stderr
    assert devices(folder) == {
        "slice_query_start_locs": ("cpu", "PASS"),
        "compute_token_to_req_indices": ("interpreter", "PASS"),
    }


@pytest.mark.lanes
def test_a_table_and_a_stub_change_nothing_of_that(attnproof, folder):
    text = KERNELS.replace("import triton\n", "from vllm.triton_utils import tl, triton\n")
    (folder / "kernels.py").write_text(text.replace("import triton.language as tl", ""))
    (folder / "host.py").write_text(MIXED.replace("compute_token_to", "token_to"))
    call = "token_to_req_indices(query_start_loc, out, num_mapped_tokens, num_tokens)"
    table = f'module = "host.py"\nstub = "vllm"\n[functions]\ncompute_{call[:20]} = "{call}"\n'
    (folder / "mixed.toml").write_text(table)
    done = attnproof("verify", *QUICK[:-1], "--candidate=mixed.toml", cwd=folder)
    assert (done.returncode, done.stdout.count(LAUNCHES)) == (0, 1), done.stdout + done.stderr


@pytest.mark.lanes
def test_a_mistake_of_the_kernel_is_found_and_replayed_there(attnproof, folder):
    (folder / "kernels.py").write_text(KERNELS.replace("SHIFT=0", "SHIFT=rows // 3"))
    done = attnproof("verify", *QUICK, cwd=folder)
    assert (done.returncode, devices(folder)["slice_query_start_locs"][1]) == (1, "PASS")
    (command,) = re.findall("attnproof (replay .*)", done.stdout)
    assert "--device" not in command
    again = attnproof(*shlex.split(command), cwd=folder)
    assert (again.returncode, "judged in the interpreter" in again.stdout) == (1, True)


@pytest.mark.lanes
def test_a_cpu_that_is_asked_for_is_kept_and_the_failure_names_the_interpreter(attnproof, folder):
    done = attnproof("verify", *QUICK, "--device=cpu", cwd=folder)
    assert done.returncode == 1
    assert "(Triton launches no kernel on a CPU: --device interpreter)" in done.stdout
    assert re.search("replay .* --device cpu\n", done.stdout)


@pytest.mark.lanes
def test_a_function_with_a_way_for_the_cpu_stays_there(attnproof, folder):
    way = "kernels.launch(query_start_loc.contiguous(), out[:num_mapped_tokens], rows)"
    loop = "out[:num_mapped_tokens] = torch.arange(rows).repeat_interleave(query_start_loc.diff())"
    text = MIXED.replace(way, f"{way} if out.is_cuda else out[:0]\n        {loop}")
    (folder / "mixed.py").write_text(f"import torch\n{text}")
    done = attnproof("verify", *QUICK, cwd=folder)
    assert (done.returncode, LAUNCHES in done.stdout) == (0, False), done.stdout
    assert devices(folder)["compute_token_to_req_indices"] == ("cpu", "PASS")


@pytest.mark.slow
def test_bench_times_what_runs_on_the_cpu(attnproof, folder):
    few = ("--candidate=mixed.py", "--seconds=1", "--steps=0", "--out=o")
    done = attnproof("bench", *few, "--ops=compute_token_to_req_indices", cwd=folder)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "each operation launches Triton, which only a GPU times" in done.stderr
    done = attnproof("bench", *few, cwd=folder)
    assert devices(folder)["slice_query_start_locs"] == ("cpu", "PASS")
    assert "not run: compute_token_to_req_indices on mixed: launches Triton" in done.stdout


class Kernel:
    """Stand-in for a kernel of Triton."""


KERNEL = Kernel()
OWN = SimpleNamespace(kernel=KERNEL)


def calls():
    return KERNEL


@lru_cache
def cached():
    return calls()


def decorated(function):
    def inner():
        return function()

    return inner


class Tables:
    @property
    def rows(self):
        return [calls() for _ in range(2)]

    def method(self):
        return calls()


class Inherits(Tables):
    pass


def has_an_inner_one():
    def inner():
        return Inherits()

    return inner


def has_none():
    return json.dumps(re.escape(""))


@pytest.mark.parametrize(
    ("part", "is_named"),
    [
        *((part, True) for part in (calls, cached, decorated(calls), Tables, Inherits)),
        *((part, True) for part in (has_an_inner_one, partial(calls), Tables().method, KERNEL)),
        *((part, False) for part in (has_none, decorated(has_none), len, json.JSONEncoder, None)),
    ],
)
def test_the_code_of_a_part_names_a_kernel_or_not(monkeypatch, part, is_named):
    module = SimpleNamespace(KernelInterface=Kernel)
    monkeypatch.setitem(sys.modules, "triton.runtime.jit", module)
    assert names_kernel(part, __name__.partition(".")[0]) == is_named
    monkeypatch.delitem(sys.modules, "triton.runtime.jit")
    assert not names_kernel(part, __name__.partition(".")[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_kernel_without_strides_is_right_on_the_tensors_of_an_engine(attnproof, tmp_path, seed):
    (tmp_path / "trusting.py").write_text(TRUSTING)
    options = (f"--seed={seed}", "--depth=quick", "--no-remember", "--candidate=trusting.py")
    done = attnproof("verify", "--ops=compute_token_to_req_indices", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
