"""Programs of findings fail as the candidate does, and pass with the reference's functions."""

from __future__ import annotations

import re
import subprocess
import sys
from math import nan

import pytest
import torch

from attnproof import reference
from attnproof.harness.model.call_kinds import FunctionCall
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.programs.source import NoProgramError
from attnproof.harness.running.programs.standalone import _HELPERS, standalone_program

FUNCTIONS = [name for name, operation in ALL.items() if type(operation.call) is FunctionCall]
RIGHT = """
def get_last_loc(req_to_token, req_pool_indices_tensor, prefix_lens_tensor):
    rows = req_to_token[req_pool_indices_tensor.long()].long()
    last = rows.gather(1, (prefix_lens_tensor.long() - 1).clamp(min=0)[:, None])[:, 0]
    slots = last.where(prefix_lens_tensor > 0, -1)
    return slots.to((req_to_token[:0, 0] + prefix_lens_tensor[:0]).dtype)
"""
ALONE = "import sys, runpy; sys.modules['attnproof'] = None; runpy.run_path(sys.argv.pop(1))"


def program_of(case, path, wrong=(), **options):
    function = getattr(reference, case.operation, None)
    trial = Trial(ALL[case.operation], case, function, function, "cpu")
    return standalone_program(trial, Candidate("mine", str(path), **options), wrong)


def boundaries(name, number=3):
    named = [case for _, case in ALL[name].inputs.boundaries()]
    return [case for case in named if case.num_tokens < 500][:number]


def test_a_program_fails_with_the_bug_and_passes_without_it_where_attnproof_is_missing(tmp_path):
    file, program = tmp_path / "mine.py", tmp_path / "case.py"
    case = boundaries("get_last_loc")[-1]
    program.write_text(program_of(case, file, ["result"]), encoding="utf-8")
    for source, code in ((RIGHT, 0), (RIGHT.replace("last.w", "(last + 1).w"), 1)):
        file.write_text(source, encoding="utf-8")
        command = [sys.executable, "-B", "-c", ALONE, program]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        assert run.returncode == code, run.stderr
        wrong = r"AssertionError: result\[\d+\] is (\d+), expected (\d+); \d+ of \d+ elements"
        shown = re.search(wrong, run.stderr)
        assert bool(shown) == bool(code)
        assert shown is None or int(shown[1]) == int(shown[2]) + 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_pass_with_the_functions_of_the_reference(name, tmp_path, monkeypatch):
    file = tmp_path / f"candidate_{name}.py"
    file.write_text("from attnproof.reference import *\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for case in boundaries(name):
        try:
            program = program_of(case, file)
        except NoProgramError:
            continue
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize(
    ("got", "expected", "message"),
    [
        ([1, 5, 7], [1, 2, 3], r"out\[1\] is 5, expected 2; 2 of 3 elements differ"),
        ([[1.0, nan]], [[1.0, 2.0]], r"out\[0, 1\] is nan, expected 2.0; 1 of 2 elements differ"),
        ([1], [1, 2], r"out is \(torch.int64, 1\), expected \(torch.int64, 2\)"),
        (4, 3, r"out is 4, expected 3; 1 of 1 elements differ"),
    ],
)
def test_a_failing_check_says_the_first_wrong_element(got, expected, message):
    check = helpers()["check"]
    with pytest.raises(AssertionError, match=f"^{message}$"):
        check("out", torch.tensor(got), torch.tensor(expected))
    check("out", torch.tensor(got), torch.tensor(got))


def test_a_failing_check_of_floats_says_the_farthest_element():
    right = torch.ones(2, 3, dtype=torch.float64)
    wrong = right.half()
    helpers()["check_close"]("out", wrong, right)
    wrong[1, 2] = 3
    with pytest.raises(AssertionError, match=r"^out\[1, 2\] is 3.0, expected 1.0: "):
        helpers()["check_close"]("out", wrong, right)


def helpers():
    """Return the functions of a program by name."""
    names = {"torch": torch}
    exec("\n".join(["from __future__ import annotations", *_HELPERS.values()]), names)
    return names


def test_malformed_input_must_raise(tmp_path):
    (case, *_) = boundaries("build_slot_mapping")
    fault = next(iter(ALL[case.operation].inputs.faults))
    malformed = Case(case.operation, case.batch, case.params, fault)
    program = program_of(malformed, tmp_path / "mine.py")
    assert "except (ValueError) as error:" in program
    assert "raise AssertionError" in program


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("batch_sequence", {}, "no call of one function"),
        ("build_slot_mapping", {"interface": "vllm-0.11"}, "classes of vllm-0.11"),
        ("reorder_batch_to_split_decodes_and_prefills", {}, "Engine among the values"),
    ],
)
def test_what_has_no_program_says_why(name, options, reason, tmp_path):
    (case,) = boundaries(name, 1) or [Case(name, None, {"steps": []})]
    with pytest.raises(NoProgramError, match=reason):
        program_of(case, tmp_path / "mine.py", **options)


def test_a_wrong_output_that_no_program_can_read_is_said(tmp_path):
    (case,) = boundaries("build_slot_mapping", 1)
    with pytest.raises(NoProgramError, match="other is no part of the result"):
        program_of(case, tmp_path / "mine.py", ["other"])


def test_a_program_reads_the_arguments_that_a_call_writes(tmp_path, monkeypatch):
    name = "reshape_and_cache_flash"
    file = tmp_path / "writes_nothing.py"
    file.write_text(f"def {name}(*args, **kwargs): pass\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    case = next(case for case in boundaries(name) if case.batch and case.num_tokens)
    program = program_of(case, file, ["key_cache"])
    with pytest.raises(AssertionError, match="key_cache"):
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
