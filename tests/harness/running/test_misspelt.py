"""Tests of near matches for misspelt functions, candidates and interfaces."""

from __future__ import annotations

from types import ModuleType

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.interface_choice import with_interface
from attnproof.harness.running.parent.plan import probe, unrun_notes
from attnproof.harness.running.task.settings import Settings
from attnproof.harness.running.worker.misspelt import misspelt

OPERATIONS = [ALL["build_slot_mapping"], ALL["split_attn_metadata"]]


def probed(tmp_path, text: str):
    (tmp_path / "mine.py").write_text(text)
    return probe(resolve([str(tmp_path / "mine.py")], "cpu"), OPERATIONS, Settings()).lacking


def test_a_nearly_right_function_gets_a_note(tmp_path):
    text = "def build_slot_maping(): ...\ndef split_attn_metadata(): ...\ndef helper(): ...\n"
    assert unrun_notes(probed(tmp_path, text)) == [
        "build_slot_mapping on mine: the candidate has no such function; "
        "build_slot_maping: did you mean build_slot_mapping?"
    ]


@pytest.mark.parametrize("own", ["build_sm", "slot_map", "bslotmapping"])
def test_an_abbreviated_function_gets_the_operation(tmp_path, own):
    text = f"def {own}(): ...\ndef split_attn_metadata(): ...\ndef slots(): ...\ndef _bsm(): ...\n"
    (note,) = unrun_notes(probed(tmp_path, text))
    assert note.endswith(f"; {own}: did you mean build_slot_mapping?")


def test_parameters_decide_between_operations_of_the_same_letters():
    module = ModuleType("mine")
    exec("def split_dp(batch, decode_threshold, require_uniform): ...", vars(module))
    absent = ["split_decodes_prefills_and_extends", "split_decodes_and_prefills"]
    assert misspelt(module, absent) == {"split_decodes_and_prefills": "split_dp"}
    assert misspelt(module, absent[:1]) == {"split_decodes_prefills_and_extends": "split_dp"}


def test_a_candidate_with_right_names_gets_none(tmp_path):
    text = "def build_slot_mapping(): ...\ndef build_slot_maping(): ...\n"
    assert unrun_notes(probed(tmp_path, text)) == []


def test_a_candidate_of_one_misspelt_function_is_told_so(tmp_path):
    with pytest.raises(UsageError, match="did you mean build_slot_mapping"):
        probed(tmp_path, "def build_slot_maping(): ...\n")


def test_a_misspelt_candidate_or_interface_gets_the_near_one():
    with pytest.raises(UsageError, match="did you mean optimized"):
        resolve(["optimised"], "auto")
    with pytest.raises(UsageError, match=r"did you mean vllm-0\.1"):
        with_interface([], "vlm-0.11")
