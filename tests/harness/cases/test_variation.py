"""Changed cases are well-formed and small, cover many pairs, and follow from their seed."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from msgspec.structs import replace

from attnproof.harness.cases.batches.request_rows import request_rows
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.magnitudes import (
    FLOAT_LIMITS,
    ROUNDED_SIZES,
    around,
    critical,
    first_blocks,
)
from attnproof.harness.cases.variation.added_features import with_added_features
from attnproof.harness.cases.variation.batch_changes import batch_changes
from attnproof.harness.cases.variation.change import MOST_LARGE, MOST_SIZE, is_small, size_of
from attnproof.harness.cases.variation.combined import changes_of, crossed, enlarged, limits_of
from attnproof.harness.cases.variation.irregular import irregular, is_regular
from attnproof.harness.cases.variation.neighbours import neighbours_of
from attnproof.harness.cases.variation.other_values import other_options, other_values
from attnproof.harness.cases.variation.rows import with_blocks
from attnproof.harness.cases.variation.varied import varied
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.running.case_check import problem_of, problem_of_variant
from attnproof.harness.running.task.more_cases import ids_of_large, is_interpreted_soon

SPLIT = ALL["split_decodes_and_prefills"]
SLOTS = ALL["build_slot_mapping"]
FUNCTIONS = [operation for operation in ALL.values() if operation.inputs.machine is None]


_LENS = ("query_lens", "computed_lens")


def slot_case():
    batch = make_batch([3, 1], [5, 40], 16)
    return Case("build_slot_mapping", batch, {"num_padded": None, "out_spare": None})


def test_each_limit_stands_between_its_neighbours():
    assert around((0, 16), 0, 2**31) == (0, 1, 15, 16, 17)
    assert {2**24 - 1, 2**24, 2**24 + 1, 2**31 - 1} <= set(critical(0, 2**31 - 1))
    assert max(critical(1, 300)) == 300
    assert min(critical(1, 300)) == 1


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_slots_pass_two_to_the_31_at_a_block_id_of_the_catalogue(block_size):
    assert 2**31 // block_size - 1 in first_blocks(block_size)


@pytest.mark.parametrize("operation", FUNCTIONS, ids=lambda operation: operation.name)
def test_changed_cases_are_well_formed_small_and_new(operation):
    own = [case for _, case in operation.inputs.boundaries()]
    made = [
        *crossed(operation, 10, 3, problem_of),
        *varied(operation, own, 10, 3, problem_of),
    ]
    limits = limits_of(operation)
    assert [problem_of(case) for _, case in made if problem_of(case)] == []
    assert [name for name, case in made if not is_small(case, limits)] == []
    assert not {case.id for name, case in made if name.startswith("varied")} & {c.id for c in own}


@pytest.mark.parametrize("name", ["blocks of 1", "blocks shuffled"])
def test_a_batch_of_very_many_blocks_is_not_made(name):
    batch = replace(slot_case().batch, computed_lens=(0, 2**27), blocks=((), ()))
    [change] = [change for change in batch_changes() if change.name == name]
    assert change.apply(replace(slot_case(), batch=batch)) is None


@pytest.mark.parametrize("operation", FUNCTIONS, ids=lambda operation: operation.name)
def test_other_values_are_well_formed_and_follow_from_the_case(operation):
    for _, case in operation.inputs.boundaries():
        others = other_values(case, problem_of, 2)
        assert others == other_values(case, problem_of, 2)
        assert len(others) <= 2
        assert case not in others
        assert [problem_of(other) for other in others] == [""] * len(others)
        for other in others:
            assert case.batch is None or _size(other.batch) == _size(case.batch)


def _size(batch):
    """Return rows and tokens of the batch with those of padding."""
    rows = batch.num_requests + batch.padded_requests
    return rows, batch.num_tokens + batch.padded_tokens


def test_neighbours_have_as_many_rows_and_tokens():
    batch = make_batch([1, 4, 1], [6, 0, 3], 4, padded_requests=2, padded_tokens=1)
    moved, live, idle = neighbours_of(batch)
    assert {_size(one) for one in (moved, live, idle)} == {_size(batch)}
    assert moved.query_lens == (1, 3, 2)
    assert (live.query_lens, live.padded_requests) == ((1, 4, 1, 1), 1)
    assert (idle.query_lens, idle.padded_tokens) == ((0, 4, 1), 2)
    assert neighbours_of(make_batch([3], [0], 4)) == []


def test_other_values_of_a_batch_keep_its_size():
    first, second = other_values(slot_case(), problem_of, 2)
    assert first.batch.query_lens == (1, 3)
    assert second.batch.query_lens == (2, 2)
    for other in (first.batch, second.batch):
        assert sorted(map(len, other.blocks)) == [1, 3]
        assert sum(other.computed_lens) == 47


def test_other_options_change_one_flag_or_empty_one_list_of_names():
    operation = ALL["is_all_encoder_attn_metadata_set"]
    cases = dict(operation.inputs.boundaries())
    case = cases["encoder_seq_lens not set"]
    found = other_options(case, problem_of, 9)
    changed = [{n for n, v in one.params.items() if v != case.params[n]} for one in found]
    assert {"absent"} in changed
    assert all(len(names) == 1 for names in changed)
    assert [problem_of(one) for one in found] == [""] * len(found)
    assert other_options(case, problem_of, 2) == found[:2]


@pytest.mark.parametrize("count", [0, 1, 2, 5, 40])
@pytest.mark.parametrize("lot", range(8))
def test_rows_of_requests_are_distinct_and_exist(count, lot):
    for room in (count, count + 1, 2 * count + 1):
        rows = request_rows(count, room, lot).tolist()
        assert len({*rows}) == count
        assert all(0 <= row < room for row in rows)


def test_rows_of_requests_come_in_different_orders():
    assert len({tuple(request_rows(5, 11, lot)) for lot in range(8)}) == 8
    rows = request_rows(5, 5, 6).tolist()
    assert rows == [0, 3, 2, 1, 4]


@pytest.mark.parametrize(
    ("name", "longest"),
    [
        ("lens at most interleave_size +0", 4),
        ("lens at most interleave_size -1", 3),
        ("lens at most dcp_size times interleave_size +0", 12),
        ("lens at most dcp_size times interleave_size +1", 13),
    ],
)
def test_a_list_is_bounded_by_other_parameters(name, longest):
    changes = {one.name: one for one in changes_of(ALL["get_dcp_lens"])}
    case = dict(ALL["get_dcp_lens"].inputs.boundaries())["rank 0 of 3, from starts (K37)"]
    assert max(changes[name].apply(case).params["lens"]) == longest


@pytest.mark.parametrize("query", [9, 1])
def test_the_first_row_fills_a_block_that_others_have_as_context(query):
    operation = ALL["build_slot_mapping"]
    changes = {one.name: one for one in changes_of(operation)}
    case = Case("build_slot_mapping", make_batch([query, 1, 2], [5, 0, 30], 4), {"with_out": False})
    batch = changes["blocks that the first row fills in the step"].apply(case).batch
    shared = batch.computed_lens[1] // 4
    assert batch.computed_lens[1:] == (4 * shared, 4 * shared)
    assert 5 < 4 * shared <= 5 + batch.query_lens[0]
    assert batch.blocks[1][:shared] == batch.blocks[2][:shared] == batch.blocks[0][:shared]


def test_inner_entries_differ_from_two_equal_ends():
    operation = ALL["prepare_prefill_inputs"]
    changes = {one.name: one for one in changes_of(operation)}
    case = dict(operation.inputs.boundaries())["equal chunks, the inner one at another depth"]
    rows = changes["rows as the first, inner computed -1"].apply(case).params["rows"]
    assert [row["computed"] for row in rows] == [4, 3, 4]
    assert len({row["slot"] for row in rows}) == 3
    assert [row["query"] for row in rows] == [3, 3, 3]


def test_large_cases_of_whole_contexts_are_beyond_a_tile_of_any_size():
    for name in ("get_last_loc", "reshape_and_cache_flash"):
        made = [case for _, case in enlarged(ALL[name], 23, 1, problem_of_variant)]
        assert max(case.num_tokens for case in made) > 4096


def test_the_seed_determines_the_cases():
    first = list(crossed(SPLIT, 20, 1, problem_of))
    assert list(crossed(SPLIT, 20, 1, problem_of)) == first
    assert list(crossed(SPLIT, 20, 2, problem_of)) != first
    assert len(first) == 20


def test_crossed_cases_prefer_new_pairs_of_values():
    made = [name.removeprefix("crossed: ") for name, _ in crossed(SPLIT, 60, 1, problem_of)]
    pairs = [pair for name in made for pair in combinations(name.split(", "), 2)]
    assert len(set(pairs)) > 0.9 * len(pairs) > 900
    values = {value for name in made for value in name.split(", ")}
    assert len(values) > len(changes_of(SPLIT)) // 3


def test_crossed_cases_have_what_single_boundaries_lack():
    batches = [
        case.batch
        for seed in range(5)
        for _, case in crossed(SPLIT, 60, seed, problem_of)
        if case.batch is not None
    ]
    behind = [batch for batch in batches if max(batch.query_lens[512:], default=0) > 1]
    assert behind
    assert any(max(batch.computed_lens, default=0) > 2**24 - 2000 for batch in batches)
    assert any(batch.num_requests in (33, 65, 67, 129) for batch in batches)
    assert any(batch.dtype != "int32" and batch.padded_tokens for batch in batches)


@pytest.mark.parametrize("change", list(batch_changes()), ids=lambda change: change.name)
def test_a_changed_batch_is_consistent(change):
    changed = change.apply(slot_case())
    assert changed is None or problem_of(changed) == ""


@pytest.mark.parametrize("size", [1, 16, 48])
@pytest.mark.parametrize("limit", FLOAT_LIMITS)
@pytest.mark.parametrize("edge", [-1, 0, 1])
def test_a_sequence_ends_at_the_edge_of_blocks_that_grow(size, limit, edge):
    case = slot_case()
    case = replace(case, batch=with_blocks(replace(case.batch, block_size=size)))
    name = f"last sequence ends at a block beyond {limit} {edge:+d}"
    [change] = [one for one in batch_changes() if one.name == name]
    batch = change.apply(case).batch
    end = batch.query_lens[-1] + batch.computed_lens[-1]
    assert end > limit
    assert (end - edge) % batch.block_size == 0
    assert end // batch.block_size < 4096


def test_multiples_of_a_size_times_its_reciprocal_are_rounded_down():
    single, double = (np.float32, np.float64)
    for size, kind in zip(ROUNDED_SIZES, (single, double), strict=True):
        reciprocal = kind(1) / kind(size)
        assert any(int(kind(n * size) * reciprocal) == n - 1 for n in (1, 2, 3))


def test_large_cases_have_more_blocks_than_uint16_and_whole_tiles_of_any_size():
    made = [case for _, case in enlarged(SLOTS, 40, 1, problem_of_variant)]
    assert max(len(row) for case in made for row in case.batch.blocks) > 2**16
    assert any(2**13 in case.batch.query_lens for case in made)
    ends = {
        case.batch.block_size
        for case in made
        for query, computed in zip(case.batch.query_lens, case.batch.computed_lens, strict=True)
        if computed + 1 == case.batch.block_size and query > 2 * case.batch.block_size
    }
    assert set(ROUNDED_SIZES) <= ends


def test_tokens_are_padded_to_equal_queries():
    (padded,) = [one for one in batch_changes() if one.name == "tokens padded to equal queries"]
    batch = padded.apply(slot_case()).batch
    assert sum(batch.query_lens) + batch.padded_tokens == 2 * 3


def test_large_cases_pass_tiles_of_any_page_size_and_int16():
    made = [case for _, case in enlarged(SLOTS, 40, 1, problem_of_variant)]
    assert [problem_of(case) for case in made if problem_of(case)] == []
    assert max(map(size_of, made)) <= MOST_LARGE
    assert sum(size_of(case) > MOST_SIZE for case in made) > 30
    longest = {max(case.batch.query_lens): case.batch.block_size for case in made}
    assert {2**15 + 5, 2**16 + 1} <= set(longest)
    assert any(1024 % size for size in longest.values())
    assert any(case.num_requests > 1024 for case in made)


def test_made_cases_have_small_tensors_only():
    name = "make_local_attention_virtual_batches"
    case = Case(name, make_batch([1] * 600, [0] * 600, 1), {"attn_chunk_size": 2**12})
    assert problem_of(case) == ""
    assert "elements" in problem_of_variant(case)


def test_a_run_of_rows_has_other_rows_before_and_behind():
    change = next(c for c in batch_changes() if c.name == "rows 64 to 127 as the first one")
    rows = list(zip(*(getattr(change.apply(slot_case()).batch, n) for n in _LENS), strict=True))
    assert set(rows[64:128]) == {rows[0]}
    assert {(3, 5), (1, 40)} == set(rows[:64]) == set(rows[128:])


def test_fields_of_two_entries_and_of_all_are_changed_at_once():
    operation = ALL["expand_idx_mapping"]
    case = next(case for name, case in operation.inputs.boundaries() if "mixed" in name)
    named = {change.name: change for change in changes_of(operation)}
    for place, number in (("last two", 2), ("whole list", len(case.params["rows"]))):
        changed = named[f"rows query of the {place}: 17"].apply(case)
        assert [row["query"] for row in changed.params["rows"]].count(17) == number


def test_repeated_rows_take_their_parameters_with_them():
    case = slot_case()
    case = Case(case.operation, case.batch, {**case.params, "start_idx": [2, 7]})
    change = next(change for change in batch_changes() if change.name == "9 rows")
    changed = change.apply(case)
    assert changed.params["start_idx"] == [2, 7, 2] * 3
    blocks = [block for row in changed.batch.blocks for block in row]
    assert len(set(blocks)) == len(blocks)


def test_a_dressed_step_keeps_its_requests():
    for seed in range(30):
        names, case = with_added_features(slot_case(), str(seed), problem_of)
        assert problem_of(case) == ""
        assert case.batch.query_lens == slot_case().batch.query_lens
        assert bool(names) == (case != slot_case())


@pytest.mark.parametrize(
    ("chunk", "query", "quick"),
    [(2**20, 3, False), (2**10, 3, True), (2**10, 300, False), (7, 3, False)],
    ids=["a wide result", "small", "many tokens", "the reference raises"],
)
def test_the_interpreter_gets_cases_with_few_tokens_and_small_results(chunk, query, quick):
    name = "make_local_attention_virtual_batches"
    case = Case(name, make_batch([query], [0], 2), {"attn_chunk_size": chunk})
    assert is_interpreted_soon(ALL[name], case) is quick


@pytest.mark.parametrize("name", ["post_update", "runner_sequence", "write_req_to_token_pool"])
def test_of_large_boundaries_the_largest_and_one_of_full_tiles_are_kept(name):
    operation = ALL[name]
    left_out = ids_of_large(operation)
    sizes = {case.id: case.num_steps or size_of(case) for _, case in operation.inputs.boundaries()}
    large = {case_id: size for case_id, size in sizes.items() if size > 100}
    kept = [size for case_id, size in large.items() if case_id not in left_out]
    assert left_out <= large.keys()
    assert max(kept) == max(large.values())
    assert len(kept) <= 2
    full = any(size % 128 == 0 for size in large.values())
    assert any(size % 128 == 0 for size in kept) == full


def test_regular_lists_are_equal_of_a_constant_step_or_a_permutation():
    for values in ([2, 2, 2, 2], [9, 7, 5, 3], [2, 0, 3, 1]):
        assert is_regular(values), values
    for values in ([2, 2, 2], [2, 2, 1, 2], [1.0, 1.0, 1.0, 1.0], [True] * 4, []):
        assert not is_regular(values), values


def test_disturbed_lists_have_the_ends_the_sum_or_the_set_of_the_regular_ones():
    case = Case("build_slot_mapping", make_batch([2] * 6, [30] * 6, 4), slot_case().params)
    others = dict(irregular([case], 1, lambda _regular, _case: True))
    queries = {other.batch.query_lens for other in others.values()}
    assert {(2, 3, 1, 2, 2, 2), (2, 2, 2, 3, 1, 2), (2, 3, 2, 2, 2, 2)} <= queries
    blocks = {other.batch.blocks[0] for other in others.values()}
    assert {(0, 2, 1, *range(3, 8)), (*range(5), 6, 5, 7)} <= blocks
    for other in others.values():
        assert not problem_of(other)
        assert other.batch.query_lens[0] == other.batch.query_lens[-1] == 2


def test_disturbed_lists_reach_the_columns_of_pairs_and_rows():
    operation = ALL["copy_blocks"]
    own = [case for _, case in operation.inputs.boundaries()]
    names = {name for name, _ in irregular(own, 1, lambda _regular, _case: True)}
    for way in ("pairs 0 with one moved early", "pairs 1 with one raised late"):
        assert f"irregular: {way}" in names
