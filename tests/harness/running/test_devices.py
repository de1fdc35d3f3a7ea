"""Tests of `--device`: any device of torch, and one line for a word that is none."""

from __future__ import annotations

import pytest

from attnproof.harness.model.candidate import OPTIMIZED, REFERENCE, Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running import devices
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.devices import check_device, why_absent
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.parent.plan import find_skip
from attnproof.harness.running.parent.session import _cost


@pytest.mark.parametrize(
    "word",
    [
        "auto",
        "interpreter",
        "cpu",
        "cpu:0",
        "cuda",
        "cuda:1",
        "xpu",
        "npu:0",
        "mps",
        "hpu",
        "privateuseone:1",
        "vulkan",
    ],
)
def test_devices_that_torch_or_an_extension_has_are_accepted(word):
    check_device(word)


@pytest.mark.parametrize(
    "word", ["", "gpu", "cud", "cuda:", "cuda:x", "cuda:1:2", "CPU", "cuda 1", "cuda:-1", "meta"]
)
def test_other_words_are_a_mistake_in_one_line(word):
    with pytest.raises(UsageError, match=r"--device is .* expected auto, interpreter") as error:
        check_device(word)
    assert "\n" not in str(error.value)


def test_a_misspelt_device_gets_the_near_one():
    with pytest.raises(UsageError, match="did you mean cuda"):
        check_device("cud:1")


@pytest.mark.parametrize("word", ["cpu:0", "cpu"])
def test_a_numbered_cpu_is_the_cpu(word):
    assert [candidate.lane for candidate in resolve(["reference"], word)] == ["cpu"]


def test_the_device_of_a_lane_is_torch_s():
    assert Candidate("c", "c", "interpreter").device == "cpu"
    assert Candidate("c", "c", "npu:0").device == "npu:0"


def test_without_names_another_device_verifies_optimized():
    assert resolve([], "xpu:1") == [Candidate("optimized", OPTIMIZED, "xpu:1")]


@pytest.fixture
def without_cuda(monkeypatch):
    monkeypatch.setattr(devices, "gpu_name", lambda: None)


@pytest.mark.parametrize("lane", ["cuda", "cuda:7"])
def test_without_a_gpu_a_cuda_candidate_is_unverified(without_cuda, lane):
    skip = find_skip(ALL["build_slot_mapping"], Candidate("reference", REFERENCE, lane))
    assert (skip.verdict, skip.reason.text) == ("UNVERIFIED", "no CUDA device on this machine")


def test_a_device_that_the_machine_lacks_is_absent_with_torch_s_reason():
    problem = why_absent(Candidate("reference", REFERENCE, "xpu:3"))
    assert problem.startswith("no device xpu:3 on this machine: ")
    assert "\n" not in problem


@pytest.mark.parametrize("lane", ["cpu", "interpreter"])
def test_the_cpu_is_always_there(lane):
    assert why_absent(Candidate("reference", REFERENCE, lane)) == ""


def test_a_candidate_s_import_may_register_its_device(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\ntorch.empty = lambda *sizes, device: None  # what an extension adds\n"
    )
    candidate = Candidate("mine", str(tmp_path / "mine.py"), "privateuseone")
    assert why_absent(candidate) == ""
    assert why_absent(Candidate("reference", REFERENCE, "privateuseone")) != ""


def test_an_absent_device_ends_incomplete(attnproof, tmp_path):
    arguments = ["verify", "--candidate", "reference", "--ops", "build_slot_mapping"]
    done = attnproof(*arguments, "--device", "xpu", "--examples", "5", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "no device xpu on this machine" in done.stdout
    done = attnproof(*arguments, "--device", "gpu", cwd=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (tmp_path / "reports" / "gpu").exists()


def test_the_operations_that_take_longest_on_a_device_begin_first():
    on_gpu, on_host = (Candidate("optimized", OPTIMIZED, lane) for lane in ("cuda", "cpu"))
    names = ("build_slot_mapping", "split_attn_metadata", "paged_attention", "decode_attention")
    operations = [ALL[name] for name in ("get_kv_cache_layout", *names)]

    def order(candidate):
        ranked = sorted(operations, key=lambda each: _cost(each, candidate), reverse=True)
        return [operation.name for operation in ranked]

    assert order(on_gpu)[:2] == ["decode_attention", "paged_attention"]
    assert order(on_gpu)[-1] == "get_kv_cache_layout"
    # On the host the order is that of the specification, but for the import of a package.
    assert order(on_host) == ["decode_attention", "get_kv_cache_layout", *names[:3]]
