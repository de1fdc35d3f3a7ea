"""Shrinking of cases that Hypothesis did not draw."""

from __future__ import annotations

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.tensors import lay_out
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.task.shrink import shrink, simpler
from attnproof.reference import validate

LARGE = Case(
    "split_attn_metadata",
    make_batch(
        [1, 9, 30, 4, 17] * 8,
        [100, 3, 0, 55, 12] * 8,
        16,
        order="shuffled",
        padded_requests=3,
        padded_tokens=5,
        spare_columns=4,
        strided=True,
        dtype="int64",
        encoder_seq_lens=tuple(range(43)),
        logits_indices=(0, 7, 300),
        subclassed=True,
    ),
    {"cuts": [5, 9, 200]},
)


def test_shrinks_to_the_parts_that_fail():
    def fails(case):
        return any(
            q >= 5 and c >= 2
            for q, c in zip(case.batch.query_lens, case.batch.computed_lens, strict=True)
        )

    small = shrink(LARGE, fails, 1500)
    assert small.batch == make_batch([5], [2], 16)
    assert small.params == {"cuts": []}


def test_keeps_the_parts_that_fail():
    small = shrink(LARGE, lambda case: case.batch.strided and case.batch.padded_requests > 1, 1500)
    assert small.batch.query_lens == (1,)
    assert small.batch.strided
    assert small.batch.padded_requests == 3 or small.batch.padded_requests == 2


def test_drops_the_subclass_before_anything_else():
    assert next(simpler(LARGE)).batch.subclassed is False
    small = shrink(LARGE, lambda case: case.batch.subclassed, 1500)
    assert small.batch.subclassed
    assert small.batch.num_requests == 1


def test_every_step_is_a_consistent_batch():
    for case in simpler(LARGE):
        metadata, _ = lay_out(case.batch)
        validate(metadata, case.batch.block_size)


def test_stops_after_its_limit_of_tries():
    calls = []
    shrink(LARGE, lambda case: bool(calls.append(case)) or True, tries=7)
    assert len(calls) == 7


def test_shrinks_lists_and_numbers_of_plain_cases():
    params = {"query_lens": [4, 9, 2], "wide": True, "strided": False}
    case = Case("compute_causal_conv1d_metadata", None, params)
    small = shrink(case, lambda case: sum(case.params["query_lens"]) >= 3, 1500)
    assert small.params == {"query_lens": [3], "wide": False, "strided": False}


SIZES = {"block_size": 4, "groups": [], "max_model_len": 9, "caching": True, "hash_lookahead": 0}


def test_shrinks_steps_and_a_number_together():
    params = {"num_blocks": 13, **SIZES, "steps": [{"do": "reset"}] * 12}

    def fails(case):
        return case.params["num_blocks"] == len(case.params["steps"]) + 1

    small = shrink(Case("kv_manager", None, params), fails, 1500)
    assert small.params["num_blocks"] <= 2


def test_shrinks_steps_and_the_places_that_they_move():
    add = {"do": "add", "tokens": 0, "like": 0, "shared": 0, "rejoins": False}
    params = {"num_blocks": 0, **SIZES, "steps": [*[add] * 5, {"do": "finish", "which": 4}]}

    def fails(case):
        return [step.get("which") for step in case.params["steps"]][-1:] == [case.num_steps - 2]

    small = shrink(Case("kv_manager", None, params), fails, 1500)
    assert small.params["steps"] == [add, {"do": "finish", "which": 0}]


def test_tries_no_case_that_cannot_be_run():
    params = {"blocks": [4, 9, 2], "range_start": 2, "range_end": 11, "block_size": 4}
    case = Case("_compute_slot_mapping_python", None, params)
    tried = []
    small = shrink(case, lambda case: tried.append(case) or case.params["range_end"] >= 3, 1500)
    assert {problem_of(case) for case in tried} == {""}
    assert small.params["range_end"] == 3


@pytest.mark.parametrize("seed", range(2))
def test_malformed_case_stays_malformed_when_shrunk(examine_candidate, seed):
    outcome = examine_candidate("swallows_errors", "split_attn_metadata", seed=seed)
    spoilt = [finding.case for finding in outcome.findings if finding.case.fault]
    assert spoilt
    faults = ALL["split_attn_metadata"].inputs.faults
    assert all(faults[case.fault].applies(case) for case in spoilt)
