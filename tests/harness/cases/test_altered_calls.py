"""Tests of altered values: malformed calls whose error the reference decides."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest

from attnproof import optimized, reference
from attnproof.harness.cases.variation.altered_calls import altered_cases, fault_of, has_fault
from attnproof.harness.model.case import decode, encode
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.loading import offered_by
from attnproof.reference.interface import MetadataError

CALLED = {name: operation for name, operation in ALL.items() if operation.call.takes_arguments}
SLOTS = ALL["build_slot_mapping"]


def boundaries(operation):
    return sorted((case for _, case in operation.inputs.boundaries()), key=lambda c: c.num_tokens)


@pytest.fixture(scope="module")
def refused():
    return [*altered_cases(SLOTS, boundaries(SLOTS)[:12], 96)]


@pytest.mark.parametrize("operation", CALLED.values(), ids=CALLED)
def test_both_packages_refuse_the_same_values(operation):
    offer, ours = offered_by(optimized, operation), offered_by(reference, operation)
    for case in altered_cases(operation, boundaries(operation)[:4], 24):
        with optimized.checking.checked():
            trial = Trial(operation, case, offer, ours, "cpu")
            assert judge(trial).failures == (), case


def test_altered_values_are_of_several_fields_and_kinds(refused):
    faults = [fault_of(SLOTS, case) for case in refused]
    assert len({fault.named for fault in faults}) >= 5
    assert {fault.error for fault in faults} == {MetadataError, TypeError}
    assert len({fault.detail() for fault in faults}) > 20


def test_a_case_is_the_same_after_saving(refused):
    for case in refused:
        saved = decode(encode(case))
        assert saved == case
        assert fault_of(SLOTS, saved).detail() == fault_of(SLOTS, case).detail()
        assert problem_of(saved) == ""


def test_what_the_reference_accepts_is_no_malformed_case(refused):
    numbers = {case.fault for case in refused}
    accepted = [f"altered value {n}" for n in range(96) if f"altered value {n}" not in numbers]
    assert accepted
    width = len(SLOTS.call.prepare(boundaries(SLOTS)[0], 0, "cpu").args)
    first = boundaries(SLOTS)[int(accepted[0].split()[-1]) // width]
    case = msgspec.structs.replace(first, fault=accepted[0])
    assert not fault_of(SLOTS, case).applies(case)
    assert "does not apply" in problem_of(case)


@pytest.mark.parametrize("name", ["altered value", "altered value -1", "altered value x", "other"])
def test_other_names_are_no_faults(name):
    assert not has_fault(SLOTS, name)
    assert "has no fault" in problem_of(msgspec.structs.replace(boundaries(SLOTS)[0], fault=name))


def test_the_call_that_was_altered_shares_nothing_that_changes(refused):
    for case in refused:
        good = SLOTS.call.prepare(msgspec.structs.replace(case, fault=""), 0, "cpu")
        before = {name: repr(good[name]) for name in good.args | good.kwargs}
        fault = fault_of(SLOTS, case)
        fault.malform(good)
        changed = {name for name in before if repr(good[name]) != before[name]}
        assert changed <= set(fault.parameter)


def test_two_values_or_all_tensors_of_a_dtype_are_altered_too(refused):
    details = [fault_of(SLOTS, case).detail() for case in refused]
    assert {detail.count(";") for detail in details} >= {0, 1, 2}


def test_mappings_make_up_what_is_missing_in_some_calls():
    slots = ALL["compute_slot_mapping"]
    cases = altered_cases(slots, boundaries(slots)[:12], 450)
    assert any("defaultdict" in fault_of(slots, case).detail() for case in cases)


def test_an_error_may_name_another_field(refused):
    def other_field(*args, **kwargs):
        try:
            return reference.build_slot_mapping(*args, **kwargs)
        except MetadataError as error:
            raise MetadataError("build_slot_mapping", "another", error.field, "") from None

    def no_error(*args, **kwargs):
        with suppress(MetadataError, TypeError):
            return reference.build_slot_mapping(*args, **kwargs)

    ours = reference.build_slot_mapping
    for case in refused:
        assert judge(Trial(SLOTS, case, other_field, ours, "cpu")).failures == ()
        [failure] = judge(Trial(SLOTS, case, no_error, ours, "cpu")).failures
        assert failure.diagnosis == "accepts malformed input"
        assert fault_of(SLOTS, case).detail() in failure.message
