"""Operations that each release offers, and the reasons for the others."""

from __future__ import annotations

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.worker.signatures import misfit_of

STAND_INS = ("0.10.2", "0.11.2", "0.32.0")


@pytest.mark.parametrize("release", STAND_INS)
def test_every_operation_is_offered_or_has_a_reason(beside, release):
    adapter = beside(release)
    assert release == adapter.VERSION
    for operation in ALL.values():
        if operation.inputs.machine is None or operation.name in adapter.NOT_OFFERED:
            offered = offered_by(adapter, operation) is not None
            assert offered != bool(adapter.NOT_OFFERED.get(operation.name)), operation.name
            assert misfit_of(adapter, operation, "") is None, operation.name


@pytest.mark.parametrize(
    ("release", "name", "reason"),
    [
        ("0.10.2", "AttentionMetadataBuilder", "has no _init_reorder_batch_threshold"),
        ("0.10.2", "compute_causal_conv1d_metadata", "vLLM 0.10.2 has no compute_causal_conv1d"),
        ("0.11.2", "AttentionBackend", "has no get_state_cls and no make_metadata"),
        ("0.11.2", "compute_slot_mapping", "vLLM 0.11.2 has no compute_slot_mapping"),
        ("0.32.0", "AttentionMetadataBuilder", "has no use_cascade_attention"),
        (
            "0.32.0",
            "build_slot_mapping",
            "compute_slot_mapping of vLLM 0.32.0 takes (num_reqs, query_start_loc, positions)",
        ),
        ("0.32.0", "split_decodes_and_prefills", "vLLM 0.32.0 has no split_decodes_and_prefills"),
        *((release, "PersistentBatch", "attnproof's own") for release in STAND_INS),
        *((release, "swap_blocks", "compiled operators") for release in STAND_INS),
    ],
)
def test_reasons_name_what_is_missing(beside, release, name, reason):
    adapter = beside(release)
    assert not hasattr(adapter, name)
    assert reason in adapter.NOT_OFFERED[name]
    assert "\n" not in adapter.NOT_OFFERED[name]


def test_slots_are_those_of_the_generation(beside):
    assert type(beside("0.10.2").build_slot_mapping).__name__ == "V0Slots"


def test_slots_of_the_later_generation(beside):
    assert type(beside("0.11.2").build_slot_mapping).__name__ == "V1Slots"
