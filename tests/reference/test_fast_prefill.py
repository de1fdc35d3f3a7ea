"""Tests of fast prefill in cases that published versions get wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from attnproof.harness.model.place import Place
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.late_copies import call_with_late_copies

NAME = "make_kv_sharing_fast_prefill_common_attn_metadata"


@pytest.mark.spec("E34: published slices, local attention and fast prefill make a plain")
def test_a_subclass_and_its_fields_survive(package, make_metadata):
    @dataclass
    class Extended(package.CommonAttentionMetadata):
        step: int = 0

    plain = make_metadata(
        [4], [4], logits_indices_padded=torch.tensor([1, 3]), num_logits_indices=2
    )
    reduced = getattr(package, NAME)(Extended(**vars(plain), step=9))
    assert type(reduced) is Extended
    assert reduced.step == 9
    assert reduced.query_start_loc.tolist() == [0, 2]


@pytest.mark.spec("E40: published code hands out such copies")
def test_a_device_copy_is_complete_before_it_is_returned(package):
    operation = ALL[NAME]
    call = operation.call.prepare(dict(operation.inputs.boundaries())["SPEC example"], 0, "cpu")
    made = call_with_late_copies(operation, getattr(package, NAME), call, "cpu")
    assert made.error is None
    assert made.outputs[Place("query_start_loc")].tolist() == [0, 1, 3, 4]
    assert made.outputs[Place("query_start_loc_cpu")].tolist() == [0, 1, 3, 4]
    assert made.outputs[Place("max_query_len")] == 2


@pytest.mark.spec("E41: a batch without requests raises RuntimeError")
def test_a_batch_without_requests_has_nothing_to_sample(package, make_metadata):
    nothing = torch.zeros(0, dtype=torch.int32)
    metadata = make_metadata([], [], logits_indices_padded=nothing, num_logits_indices=0)
    reduced = getattr(package, NAME)(metadata)
    assert reduced.query_start_loc.tolist() == reduced.query_start_loc_cpu.tolist() == [0]
    assert (reduced.num_reqs, reduced.num_actual_tokens, reduced.max_query_len) == (0, 0, 0)
