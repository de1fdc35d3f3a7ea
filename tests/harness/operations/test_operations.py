"""Every operation's cases are valid: the reference passes them, and each fault gets its error."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from attnproof import reference
from attnproof.harness.model.case import decode, encode
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.loading import offered_by
from attnproof.reference.interface import MetadataError

SPEC = (Path(__file__).parents[3] / "docs/SPEC.md").read_text(encoding="utf-8")
SINGLE = {name: operation for name, operation in ALL.items() if operation.inputs.machine is None}
SEQUENCES = {
    name: operation for name, operation in ALL.items() if operation.inputs.machine is not None
}


def trial(operation, case):
    offer = offered_by(reference, operation)
    return Trial(operation, case, offer, offer, "cpu")


@pytest.mark.parametrize("operation", ALL.values(), ids=ALL)
def test_reference_passes_its_boundary_cases(operation):
    judged = {name: judge(trial(operation, case)) for name, case in operation.inputs.boundaries()}
    assert {name: each.failures for name, each in judged.items() if each.failures} == {}


@pytest.mark.parametrize("operation", ALL.values(), ids=ALL)
def test_every_fault_gets_its_error_in_the_reference(operation):
    boundaries = [case for _, case in operation.inputs.boundaries()]
    for name, fault in operation.inputs.faults.items():
        cases = [case for case in boundaries if fault.applies(case)]
        assert cases, f"no boundary case can have the fault {name!r}"
        for case in cases[:: 1 + len(cases) // 3]:
            malformed = msgspec.structs.replace(case, fault=name)
            assert judge(trial(operation, malformed)).failures == (), malformed
        call = operation.call.prepare(cases[0], 0, "cpu")
        fault.malform(call)
        with pytest.raises(fault.error) as caught:
            operation.call.run(offered_by(reference, operation), call)
        if isinstance(caught.value, MetadataError) and not fault.any_field:
            assert caught.value.field.startswith(fault.named), name


@pytest.mark.parametrize("operation", SINGLE.values(), ids=SINGLE)
@settings(
    max_examples=10,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
@given(data=st.data())
def test_drawn_cases_are_valid_and_unchanged_by_saving(operation, data):
    case = data.draw(operation.inputs.cases())
    assert decode(encode(case)) == case
    assert decode(encode(case)).id == case.id
    assert problem_of(decode(encode(case))) == ""
    assert judge(trial(operation, case)).failures == ()


@pytest.mark.parametrize("operation", SEQUENCES.values(), ids=SEQUENCES)
def test_drawn_sequences_are_unchanged_by_saving_and_valid_without_some_steps(operation):
    drawn = []

    def judge_some(case):
        drawn.append(case)
        assert decode(encode(case)) == case
        assert problem_of(decode(encode(case))) == ""
        assert judge(trial(operation, case)).failures == ()
        steps = case.params["steps"]
        for part in (steps[::2], steps[1::2], steps[len(steps) // 2 :]):
            if part:
                fewer = msgspec.structs.replace(case, params=case.params | {"steps": part})
                assert judge(trial(operation, fewer)).failures == ()

    machine = type("Bound", (operation.inputs.machine,), {"judge": staticmethod(judge_some)})
    examples = 3 if operation.call.isolated else 8  # a process for each sequence
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=20, database=None, deadline=None
        ),
    )
    assert max(case.num_steps for case in drawn) > 5


@pytest.mark.parametrize("operation", ALL.values(), ids=ALL)
def test_steps_of_an_engine_become_cases(operation, sampled_batches):
    cases = [case for batch in sampled_batches for case in operation.inputs.from_batch(batch)]
    assert cases
    assert {problem_of(decode(encode(case))) for case in cases} == {""}
    for case in cases[::3]:
        assert judge(trial(operation, case)).failures == ()


def test_operations_have_names_of_the_reference():
    for operation in ALL.values():
        assert offered_by(reference, operation) is not None
        assert f"\n## {operation.section}. " in SPEC
