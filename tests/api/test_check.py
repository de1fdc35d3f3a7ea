"""`attnproof.check` judges a callable on the cases of `attnproof.cases`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import msgspec
import pytest

import attnproof
from attnproof import reference
from attnproof.harness.model.inline_case import inline_case
from attnproof.harness.operations import ALL
from attnproof.harness.running.cases import CaseFile, write_case

NAME = "build_slot_mapping"
CASES = attnproof.cases(NAME, examples=10)
REAL = next(case for case in CASES if not ALL[NAME].why_unreal(case))
"""A case that an engine makes: a wrong slot is a wrong result."""


def one_slot_late(*arguments, **keywords):
    slots = reference.build_slot_mapping(*arguments, **keywords)
    return slots + 1


@pytest.mark.parametrize("case", CASES[::5])
def test_the_reference_passes(case, request):
    attnproof.check(reference.build_slot_mapping, case)
    assert case.id in request.node.name


def test_a_wrong_function_fails_with_diagnosis_and_drawing():
    with pytest.raises(AssertionError) as caught:
        attnproof.check(one_slot_late, REAL)
    text = str(caught.value)
    assert text.startswith(f"{NAME} (wrong-result): ")
    assert "o computed   # query" in text
    assert "expected " in text
    assert text.endswith(inline_case(REAL))


def test_a_case_is_a_file_or_its_json_too(tmp_path):
    path = tmp_path / "case.json"
    write_case(path, CaseFile(case=REAL))
    for form in (path, str(path), path.read_text(), msgspec.json.encode(REAL).decode()):
        attnproof.check(reference.build_slot_mapping, form, operation=NAME)
        with pytest.raises(AssertionError):
            attnproof.check(one_slot_late, form)


def test_a_wrong_result_on_a_case_of_no_engine_is_a_warning():
    unreal = next(c for c in CASES if ALL[NAME].why_unreal(c) and c.batch.num_tokens)
    with pytest.warns(UserWarning, match="no engine makes the case"):
        attnproof.check(one_slot_late, unreal)


def test_malformed_input_fails_under_the_strict_contract_only():
    (case, *_) = (case for case in attnproof.cases(NAME, 0, malformed=True) if case.fault)

    def unchecked(*arguments, **keywords):
        return None

    attnproof.check(unchecked, case)
    with pytest.raises(AssertionError, match="contract"):
        attnproof.check(unchecked, case, contract="strict")


@pytest.mark.parametrize(
    ("case", "options", "message"),
    [
        (CASES[0], {"operation": "split_attn_metadata"}, "not of split_attn_metadata"),
        (CASES[0], {"contract": "lax"}, "--contract is 'lax'"),
        ("{", {}, "the text is not a case"),
        (Path("nowhere.json"), {}, "nowhere.json cannot be read"),
        (attnproof.Case(operation="none"), {}, "no operation 'none'"),
    ],
)
def test_what_cannot_be_checked_is_a_usage_error(case, options, message):
    with pytest.raises(attnproof.UsageError, match=message):
        attnproof.check(reference.build_slot_mapping, case, **options)


def test_steps_are_checked_on_an_object_that_has_the_functions():
    name = next(name for name, operation in ALL.items() if operation.inputs.machine)
    for case in islice(reversed(attnproof.cases(name, examples=3)), 2):
        attnproof.check(reference, case)
    with pytest.raises(attnproof.UsageError, match=f"is not offered as {name}"):
        attnproof.check(object(), case)


def test_equal_arguments_give_equal_cases_and_boundaries_come_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    operation = ALL[NAME]
    boundaries = list(dict.fromkeys(case.id for _, case in operation.inputs.boundaries()))
    ids = [case.id for case in CASES]
    assert ids[: len(boundaries)] == boundaries
    assert len(boundaries) < len(ids) == len(set(ids)) <= len(boundaries) + 10
    assert [case.id for case in attnproof.cases(NAME, examples=10)] == ids
    assert [case.id for case in attnproof.cases(NAME, examples=10, seed=1)] != ids
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", ["", "build_slot_mappin", f"{NAME},{NAME}"])
def test_an_unknown_operation_has_no_cases(operation):
    with pytest.raises(attnproof.UsageError, match="operation"):
        attnproof.cases(operation)
