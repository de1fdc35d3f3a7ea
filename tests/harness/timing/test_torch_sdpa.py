"""The peer of attention is right wherever the reference is, a soft cap and fp8 included."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.candidates import SDPA, resolve
from attnproof.harness.timing import torch_sdpa
from attnproof.harness.verbs.bench import default_peer

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
    assert {default_peer(ops) for ops in (*ATTENTION, ",".join(ATTENTION))} == {SDPA.name}
    assert default_peer("paged_attention,build_slot_mapping") == default_peer() != SDPA.name
