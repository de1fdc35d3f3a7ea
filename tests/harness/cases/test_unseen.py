"""Unseen cases are well-formed, differ from each other, and cost what their case does."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.steps.workloads import synthetic_batches
from attnproof.harness.cases.variation.unseen import unseen
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.timing.plan.timetable import timed_cases, why_never

WITHOUT_VALUES = {
    "compute_slot_mapping_start_idx",
    "compute_tp_mapping",
    "is_block_tables_empty",
    "reshape_query_for_spec_decode",
    "reshape_attn_output_for_spec_decode",
    "zero_blocks",
}
"""Operations whose arguments are sizes only."""
WORKLOADS = [one for one in synthetic_batches(0) if one.workload.requests in (1, 8, 64)]


@pytest.mark.parametrize(
    "operation", [one for one in ALL.values() if not why_never(one)], ids=lambda one: one.name
)
def test_timed_cases_have_unseen_ones_of_their_size(operation):
    timed = max(timed_cases([operation], WORKLOADS), key=lambda one: one.workload.tokens)
    found = unseen(timed.case, problem_of, random.Random(3), 9)
    assert len(found) == (0 if operation.name in WITHOUT_VALUES else 9)
    assert len({timed.case.id, *(one.id for one in found)}) == 1 + len(found)
    for one in found:
        assert problem_of(one) == ""
        assert one.num_requests == timed.case.num_requests
        assert one.num_tokens == timed.case.num_tokens  # code may be compiled for it


def test_decodes_stay_before_prefills_whose_lengths_change():
    batch = make_batch([1, 1, 1, 40, 60, 50], [9, 20, 3, 0, 16, 5], 16)
    case = Case("split_decodes_and_prefills", batch, {"decode_threshold": 1})
    found = unseen(case, lambda _: "", random.Random(3), 9)
    assert all(one.batch.query_lens[:3] == (1, 1, 1) for one in found)
    assert len({one.batch.query_lens for one in found}) > 5
    assert len({one.batch.computed_lens for one in found}) == 9
    # A new prompt has no context still.
    assert all(one.batch.computed_lens.count(0) == 1 for one in found)


def test_lists_of_one_length_keep_their_pairs():
    params = {"lens": [1, 2, 3, 4], "starts": [10, 20, 30, 40], "size": 7}
    found = unseen(Case("any", None, params), lambda _: "", random.Random(3), 5)
    assert len(found) == 5
    for one in found:
        pairs = zip(one.params["lens"], one.params["starts"], strict=True)
        assert sorted(pairs) == [(1, 10), (2, 20), (3, 30), (4, 40)]
        assert one.params["size"] == 7


def test_a_change_that_does_not_fit_gives_way_to_a_milder_one():
    batch = make_batch([4, 6], [9, 20], 16)
    case = Case("any", batch, {})

    def same_rows(other):
        return "" if replace(other.batch, blocks=()) == replace(batch, blocks=()) else "other rows"

    found = unseen(case, same_rows, random.Random(3), 3)
    assert len(found) == 3
    assert len({one.batch.blocks for one in found}) == 3
