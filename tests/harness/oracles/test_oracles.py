"""Each oracle finds its bug class, in a candidate with only that mistake."""

from __future__ import annotations

import pytest
import torch

from attnproof.harness.model.place import Place
from attnproof.harness.oracles import purity

FAST_PREFILL = "make_kv_sharing_fast_prefill_common_attn_metadata"


@pytest.mark.parametrize(
    ("candidate", "operation", "oracle", "diagnosis"),
    [
        ("wrong_types", "split_decodes_and_prefills", "equality", "numpy.int64 where a Python int"),
        ("wrong_types", "slice_query_start_locs", "equality", "list where a tensor"),
        ("wrong_types", "_make_metadata_with_slice", "equality", "lost field"),
        ("impure", "build_slot_mapping", "purity", "input modified"),
        ("impure", "split_decodes_and_prefills", "purity", "input modified"),
        ("shares_memory", "slice_query_start_locs", "purity", "shares memory with an input"),
        ("shares_memory", "get_batch_indices_positions", "purity", "shares memory with another"),
        ("copies_inputs", "split_attn_metadata", "purity", "a copy of an input"),
        ("uninitialised", "build_slot_mapping", "equality", "memory returned that was never"),
        ("reads_stale", "build_slot_mapping", "padding", "depends on stale entries"),
        ("stray", "build_slot_mapping", "red zones", "stray write"),
        ("remembers", "is_block_tables_empty", "determinism", "not deterministic"),
        ("other_defaults", "get_dcp_lens", "determinism", "another result without"),
        ("other_defaults", "split_decodes_and_prefills", "determinism", "another result without"),
        ("other_defaults", "BlockTables", "determinism", "another result without"),
        ("wordings", "compute_mm_prefix_range_tensor", "determinism", "depends on the order"),
        (
            "wordings",
            "eagle_step_update_slot_mapping_and_metadata",
            "determinism",
            "depends on the object that holds",
        ),
        ("one_buffer", "build_slot_mapping", "determinism", "shares memory with an earlier"),
        ("one_buffer", "slice_query_start_locs", "determinism", "changed by a later call"),
        ("one_buffer", "split_decodes_and_prefills", "determinism", "depends on the call"),
        ("one_buffer", "get_dcp_local_seq_lens", "determinism", "depends on the call"),
        ("one_buffer", "get_dcp_lens", "determinism", "changed by a later call"),
        ("one_buffer", "compute_mm_prefix_range_tensor", "determinism", "depends on the call"),
        ("one_object", "get_per_layer_parameters", "determinism", "shares memory with an earlier"),
        ("one_object", "get_mla_dims", "determinism", "depends on the call"),
        ("accepts_anything", "compute_slot_mapping_start_idx", "errors", "accepts malformed"),
    ],
)
def test_an_oracle_finds_its_bug_class(examine_candidate, candidate, operation, oracle, diagnosis):
    # Drawn cases show most mistakes; few of them are malformed or differ in a later call.
    needed = oracle in ("determinism", "errors") or candidate == "uninitialised"
    sparse = oracle != "determinism"
    outcome = examine_candidate(candidate, operation, boundaries=needed, sparse=sparse)
    assert outcome.result.verdict == "FAIL"
    found = {(finding.oracle, finding.diagnosis) for finding in outcome.findings}
    assert any(o == oracle and d.startswith(diagnosis) for o, d in found), found
    assert outcome.result.oracles[oracle].failed > 0


def test_results_share_memory_if_they_have_an_element_in_common():
    def shared(one, other):
        return [*purity._overlaps({Place("a"): one, Place("b"): other}, frozenset())]

    words, table = torch.zeros(6, dtype=torch.int32), torch.zeros(3, 2, dtype=torch.bfloat16)
    assert shared(words[:3], words[2:]) == [(Place("a"), Place("b"))]
    assert shared(words[3:], words[:4]) == [(Place("a"), Place("b"))]
    assert shared(words[:3], words[3:]) == []
    assert shared(words[::2], words[2::2]) == [(Place("a"), Place("b"))]
    # Columns lie between each other.
    assert shared(table[:, 0], table[:, 1]) == []
    assert shared(table[:, 0], table[:, 1].clone()) == []


def test_shared_memory_that_nothing_writes_is_no_danger(examine_candidate):
    outcome = examine_candidate("shares_memory", FAST_PREFILL)
    shared = {finding.diagnosis: finding for finding in outcome.findings}
    assert set(shared) == {"shares memory with an input", "a copy of the batch"}
    assert {finding.kind for finding in shared.values()} == {"contract"}
    assert "nothing writes either" in shared["shares memory with an input"].message


def test_shared_lengths_are_unsafe_as_drafters_write_them(examine_candidate):
    outcome = examine_candidate("shares_memory", "split_attn_metadata")
    [finding] = outcome.findings
    assert (finding.kind, finding.diagnosis) == ("unsafe", "shares memory with an input")
    assert "seq_lens is stored in the memory of seq_lens" in finding.message


def test_a_malformed_call_without_defaults_is_named_so(examine_candidate):
    # A sparse run makes the second call of a malformed case in half of the cases only.
    name = "make_local_attention_virtual_batches"
    outcome = examine_candidate("other_defaults", name, sparse=False)
    [finding] = outcome.findings
    assert finding.diagnosis == "accepts malformed input"
    assert finding.message.startswith("without block_size: ")
