"""Features of cases: small cases with known cells, and every operation's cases."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.coverage.features import FEATURES, STARTS, cells_of
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL


def features_of(case):
    """Return the values of a case by the key of their feature."""
    cells, found = cells_of(case), {}
    for feature, start in zip(FEATURES, STARTS, strict=False):
        values = {v for i, v in enumerate(feature.values) if cells >> start + i & 1}
        if values:
            found[feature.key] = values
    return found


def features(query, computed, block_size=4, params=None, **fields):
    batch = make_batch(list(query), list(computed), block_size, **fields)
    return features_of(Case("build_slot_mapping", batch, params or {}))


def test_a_mixed_batch_has_the_features_of_its_requests():
    found = features([1, 5, 3], [7, 0, 4])
    assert found["requests"] == {"2 to 7"}
    assert found["mix"] == {"all three"}
    assert found["order"] == {"first"}
    assert found["query"] == {"2 to 15"}
    assert found["context"] == {"1 to 15"}
    assert found["tokens"] == {"1 to 15"}
    assert found["drafts"] == {"of one length"}
    assert found["block_size"] == {"2 to 8"}
    assert found["context_end"] == {"one before", "at an edge"}
    assert found["seq_end"] == {"at an edge", "one behind", "one before"}
    assert found["spanned"] == {"two"}
    assert found["fields"] == {"none"}


@pytest.mark.parametrize(
    ("query", "computed", "mix", "order"),
    [
        ([1, 1], [3, 9], {"decodes"}, {"not mixed"}),
        ([1, 4], [3, 0], {"decodes, prefills"}, {"first"}),
        ([4, 1], [0, 3], {"decodes, prefills"}, {"behind others"}),
        ([4, 1], [0, 0], {"prefills"}, {"not mixed"}),
        ([4, 2], [9, 9], {"extends"}, {"not mixed"}),
        ([0, 0], [0, 9], {"no token"}, None),
    ],
)
def test_requests_are_decodes_extends_or_prefills(query, computed, mix, order):
    found = features(query, computed)
    assert found["mix"] == mix
    assert found.get("order") == order


@pytest.mark.parametrize(
    ("query", "idle"),
    [([1, 2], {"none"}), ([1, 0], {"last"}), ([0, 1], {"before others"}), ([0, 0], {"last"})],
)
def test_requests_without_tokens_are_found_by_their_place(query, idle):
    assert features(query, [5, 5])["idle"] == idle


@pytest.mark.parametrize(
    ("length", "place"), [(8, "at an edge"), (7, "one before"), (9, "one behind"), (6, "elsewhere")]
)
def test_a_sequence_ends_near_the_edge_of_a_block_or_chunk(length, place):
    found = features([2], [length - 2], params={"attn_chunk_size": 4})
    assert found["seq_end"] == found["chunk_end"] == {place}


def test_the_chunk_is_known_to_local_attention_only():
    assert "chunk_end" not in features([2], [6])
    assert features([9], [3], params={"attn_chunk_size": 4})["chunks"] == {"three or more"}


@pytest.mark.parametrize(
    ("window", "value"),
    [(0, "none"), (64, "not reached"), (4, "starts at a block"), (5, "in a block")],
)
def test_a_window_starts_within_or_between_blocks(window, value):
    assert features([1], [7], params={"window": window})["window"] == {value}


def test_layout_dtypes_and_optional_fields_are_features():
    found = features(
        [1, 2],
        [3, 3],
        padded_requests=1,
        padded_tokens=9,
        spare_columns=1,
        spare_slots=2,
        dtype="int64",
        strided=True,
        query_slack=1,
        logits_indices=(0, 1),
        logits_padding=1,
        causal=False,
        later=True,
    )
    assert found["padded_rows"] == {"1"}
    assert found["padded_tokens"] == {"8 or more"}
    assert found["columns"] == {"1"}
    assert found["slots"] == {"1 or more"}
    assert found["dtype"] == {"int64"}
    assert found["strides"] == {"with gaps"}
    assert found["bounds"] == {"query"}
    assert found["logits"] == {"other tokens", "with stale entries"}
    assert found["fields"] == {"later engines", "not causal"}


def test_blocks_are_shared_or_ordered_or_of_high_ids():
    assert features([1, 1], [7, 7], shared=True)["sharing"] == {"all"}
    assert features([1, 1], [7, 7])["sharing"] == {"none"}
    null = msgspec.structs.replace(make_batch([1, 1], [7, 7], 4), blocks=((0, 0), (0, 5)))
    assert features_of(Case("build_slot_mapping", null))["sharing"] == {"all", "a null block twice"}
    assert features([1], [7], order="descending")["block_order"] == {"another"}
    assert features([1], [7])["block_order"] == {"ascending"}
    assert features([1], [7], first=2**31 - 2)["block_ids"] == {"up to 2^31 - 1"}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"query_lens": [1, 3], "computed_lens": [4, 0]}, {"mix": {"decodes, prefills"}}),
        ({"seq_lens": [4, 9], "wide": True}, {"lengths": {"different"}, "dtype": {"int64"}}),
        ({"context_len": 4, "seq_len": 6, "block_size": 4}, {"context_end": {"at an edge"}}),
        ({"range_start": 4, "range_end": 5}, {"mix": {"decodes"}}),
        ({"rows": [{"query": 2, "computed": 5}]}, {"drafts": {"of one length"}}),
        ({"size": 4, "rank": 3, "interleave": 1}, {"ranks": {"4 to 7"}, "rank": {"last"}}),
        ({"groups": [{}, {}], "group": 8}, {"groups": {"2"}, "heads": {"8 or more"}}),
        ({"steps": [{}] * 5}, {"steps": {"4 to 15"}}),
    ],
)
def test_arguments_of_operations_without_a_batch_have_features(params, expected):
    found = features_of(Case("operation", None, params))
    assert {key: found.get(key) for key in expected} == expected


def test_no_two_features_share_a_cell():
    assert len({feature.key for feature in FEATURES}) == len(FEATURES)
    assert STARTS[-1] == sum(len(feature.values) for feature in FEATURES)
    for feature in FEATURES:
        assert len(set(feature.values)) == len(feature.values)


def test_every_boundary_and_batch_of_every_operation_has_its_features(sampled_batches):
    for operation in ALL.values():
        cases = [case for _, case in operation.inputs.boundaries()]
        cases += [case for batch in sampled_batches for case in operation.inputs.from_batch(batch)]
        cells = 0
        for case in cases:
            cells |= cells_of(case)
        assert 0 <= cells < 1 << STARTS[-1]
        if operation.inputs.has_batch:
            assert cells
