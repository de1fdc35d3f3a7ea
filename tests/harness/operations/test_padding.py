"""The invariants of padding detect every wrong field without a reference."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.batches.subclass import subclass_of
from attnproof.harness.model.call import MISSING
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.running.loading import offered_by
from attnproof.reference import CommonAttentionMetadata

OPERATION = ALL["CommonAttentionMetadata"]
BATCH = make_batch(
    [3, 2],
    [5, 0],
    4,
    causal=False,
    encoder_seq_lens=(7, 8),
    dcp_local_seq_lens=(4, 1),
    logits_indices=(1, 4),
    spare_slots=2,
    subclassed=True,
)
CASE = Case(OPERATION.name, BATCH, {"more_rows": 2, "more_tokens": 3})


def violated(change):
    """Return the fields with a violation after `change` of the right outputs."""
    call = OPERATION.call.prepare(CASE, 0, "cpu")
    outputs = OPERATION.call.outputs(call, OPERATION.call.run(CommonAttentionMetadata, call))
    assert list(OPERATION.contract.invariants(call, outputs)) == []
    violations = OPERATION.contract.invariants(call, outputs | change(outputs))
    return {violation.field for violation in violations}


@pytest.mark.parametrize(
    ("field", "index", "value"),
    [
        ("padded.seq_lens_cpu", -1, 4),
        ("padded.query_start_loc", -1, 8),
        ("padded.block_table_tensor", (-1, 0), 9),
        ("padded.slot_mapping", -1, 0),
        ("padded.slot_mapping", 0, 77),
        ("padded.dcp_local_seq_lens", 1, 5),
        ("padded.encoder_seq_lens", 2, 5),
        ("padded.request_tags", (3, 1), 5),
        ("padded.token_tags", -1, 5),
        ("unpadded.token_tags", 2, 5),
        ("unpadded.num_computed_tokens_cpu", 0, 1),
    ],
)
def test_a_wrong_element_is_detected(field, index, value):
    def change(outputs):
        changed = outputs[field].copy() if "encoder" in field else outputs[field].clone()
        changed[index] = value
        return {field: changed}

    assert field.removesuffix("_cpu") in {name.removesuffix("_cpu") for name in violated(change)}


@pytest.mark.parametrize(
    "field", ["encoder_seq_lens", "dcp_local_seq_lens", "request_tags", "token_tags", "label"]
)
@pytest.mark.parametrize("prefix", ["padded.", "unpadded."])
def test_a_lost_field_is_detected(prefix, field):
    assert f"{prefix}{field}" in violated(lambda _: {f"{prefix}{field}": MISSING})
    assert f"{prefix}{field}" in violated(lambda _: {f"{prefix}{field}": None})


@pytest.mark.parametrize(
    "changed",
    [
        {"padded.num_reqs": 2},
        {"padded.causal": True},
        {"unpadded.num_logits_indices": 1},
        {"unpadded.max_seq_len": 1000},
        {"padded.class": "CommonAttentionMetadata"},
        {"padded.token_tags": torch.zeros(3, dtype=torch.int64)},
        {"unpadded.logits_indices_padded": torch.zeros(2, dtype=torch.int32)},
    ],
)
def test_a_wrong_value_is_detected(changed):
    assert set(changed) <= violated(lambda _: changed)


def test_a_class_without_padded_is_judged_by_its_unpadded():
    class Theirs(CommonAttentionMetadata):
        padded = property()

    call = OPERATION.call.prepare(replace_batch(subclassed=False), 0, "cpu")
    padded, back = OPERATION.call.run(Theirs, call)
    assert type(padded) is type(back) is Theirs
    assert padded.num_reqs == 4


def test_a_class_is_offered_with_its_methods_and_not_by_importing_ours():
    class Module:
        CommonAttentionMetadata = CommonAttentionMetadata

    class Old:
        class CommonAttentionMetadata:
            pass

    class Own:
        class CommonAttentionMetadata(CommonAttentionMetadata):
            pass

    assert offered_by(Module, OPERATION) is None
    assert offered_by(Old, OPERATION) is None
    assert offered_by(Own, OPERATION) is Own.CommonAttentionMetadata


def test_each_class_has_one_subclass():
    assert subclass_of(CommonAttentionMetadata) is subclass_of(CommonAttentionMetadata)


def replace_batch(**change):
    return replace(CASE, batch=replace(BATCH, **change))
