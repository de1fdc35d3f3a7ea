"""The candidate of vLLM's kernels, which needs Triton's interpreter."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from attnproof.harness.running.candidates import resolve

ADAPTER = "attnproof.harness.adapters.vllm_triton"


@pytest.fixture
def importing(monkeypatch):
    """Import the adapter in a process with this value of TRITON_INTERPRET; return its output."""

    def run(interpret: str, program: str) -> str:
        monkeypatch.setenv("TRITON_INTERPRET", interpret)
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    return run


def test_without_the_interpreter_the_import_says_how_to_get_it(importing):
    assert "--device interpreter" in importing("0", f"import {ADAPTER}")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_import_says_what_to_install(importing):
    assert "vLLM cannot be imported" in importing("1", f"import {ADAPTER}")


@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: `tox run -e vllm-0.32`")
def test_all_kernels_are_found(importing):
    program = f"""
from {ADAPTER} import catalogue
found, reasons = catalogue.offered()
print(sorted(name for name, function in found.items() if function is None), len(found))
"""
    said = importing("1", program)
    assert "[] 20" in said or "has no kernels of sections 13 and 14" in said


@pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM: `tox run -e vllm-0.32`")
def test_its_lane_is_the_interpreter():
    [candidate] = resolve(["vllm-triton"], "auto")
    assert candidate.lane == "interpreter"


def test_on_a_gpu_its_kernels_get_no_malformed_input(monkeypatch):
    monkeypatch.setattr("attnproof.harness.running.candidates.require_engine", lambda *_: None)
    checked = {lane: resolve(["vllm-triton"], lane)[0].checked for lane in ("interpreter", "cuda")}
    assert checked == {"interpreter": True, "cuda": False}
    assert resolve(["vllm"], "cuda")[0].checked
