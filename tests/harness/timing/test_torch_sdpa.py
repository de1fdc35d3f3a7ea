"""The peer of attention is right wherever the reference is, a soft cap and fp8 included."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.candidates import SDPA, resolve
from attnproof.harness.timing import torch_sdpa
from attnproof.harness.verbs import bench
from attnproof.harness.verbs.bench import default_peers

ATTENTION = ("paged_attention", "decode_attention")


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENTION)
def test_all_oracles_accept_it_on_boundaries(name):
    for boundary, case in ALL[name].inputs.boundaries():
        if case.params["far"] or case.num_tokens > 100:
            continue  # memory and seconds
        function = getattr(torch_sdpa, name)
        trial = Trial(ALL[name], case, function, getattr(reference, name), "cpu")
        assert judge(trial).failures == (), boundary


def test_it_is_the_peer_of_attention_alone():
    assert resolve(["torch-sdpa"], "auto") == [SDPA]
    for ops in (*ATTENTION, ",".join(ATTENTION)):
        assert default_peers(ops) == [SDPA.name]
    assert default_peers("paged_attention,build_slot_mapping") == default_peers() != [SDPA.name]


def test_on_a_gpu_every_engine_that_can_be_imported_is_a_peer(monkeypatch):
    monkeypatch.setattr(bench, "_is_importable", lambda name: name != "vllm")
    assert default_peers("", "cuda") == ["vllm-triton", "flashinfer", SDPA.name]
    assert SDPA.name not in default_peers("", "cpu")


def test_an_engine_whose_import_fails_is_no_peer_and_named(monkeypatch, capfd):
    # Installed or not, no kernel of vLLM is imported without a GPU and without the interpreter.
    monkeypatch.setattr(bench, "find_spec", lambda _name: True)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert default_peers("paged_attention", "cuda") == [SDPA.name]
    assert "vllm-triton is not timed, its import fails: ImportError: " in capfd.readouterr().out
