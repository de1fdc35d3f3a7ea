"""`attnproof replay` of a sequence: steps, changed fields, and a program that runs."""

from __future__ import annotations

import re

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case
from attnproof.harness.operations.attention.cache_write_cases import PLAIN
from attnproof.harness.operations.attention.prepared import LAYER
from attnproof.harness.running.cases import CaseFile, write_case
from attnproof.harness.running.errors import MISMATCH, VERIFIED, UsageError
from attnproof.harness.strength.catalogue import find
from attnproof.harness.strength.running import planted
from attnproof.harness.verbs.options import ReplayOptions
from attnproof.harness.verbs.replay import replay

STEPS = [{"do": "get"}, {"do": "set", "layout": "HND"}, {"do": "get"}]
KEEPS_ITS_FIRST_ANSWER = """
from functools import lru_cache

from attnproof import reference
from attnproof.reference import set_kv_cache_layout


@lru_cache
def get_kv_cache_layout():
    return reference.get_kv_cache_layout()
"""


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "case.json"
    write_case(path, CaseFile(case=Case("layout_sequence", None, {"steps": STEPS})))
    return path


@pytest.fixture
def candidate(tmp_path):
    path = tmp_path / "keeps_its_first_answer.py"
    path.write_text(KEEPS_ITS_FIRST_ANSWER)
    return path


def replayed(saved, candidate, tmp_path, capfd):
    code = replay(ReplayOptions(case=str(saved), candidates=[str(candidate)], out=tmp_path))
    return code, capfd.readouterr().out


def test_a_mistake_shared_with_the_reference_is_reported(tmp_path, capfd):
    (mutation,) = find("rows from the first")
    path = tmp_path / "case.json"
    batch = make_batch([1, 1], [4, 0], 2)
    write_case(path, CaseFile(case=Case(mutation.operation, batch, {"cuts": [1], "index": 1})))
    options = ReplayOptions(case=str(path), candidates=["optimized"], device="cpu", out=tmp_path)
    with planted(mutation, "both"):
        assert replay(options) == MISMATCH
    assert (
        "consumer (wrong-result): sees another request's block: token 0 of request 1 sees "
        "block 0 of request 0, "
        "must see its key at position 0\n"
        "the reference has the same mistake: equality passes, the oracle consumer fails\n"
    ) in capfd.readouterr().out


def test_failing_sequence_is_shown_step_by_step(saved, candidate, tmp_path, capfd):
    code, text = replayed(saved, candidate, tmp_path, capfd)
    assert code == MISMATCH
    assert (
        "3 steps\n"
        "  1  get\n"
        "     layout = get_kv_cache_layout()\n"
        "       layout  'NHD'\n"
        "  2  set HND  (no visible change)\n"
        "     set_kv_cache_layout('HND')\n"
        "> 3  get\n"
        "     layout = get_kv_cache_layout()\n"
        "       layout  str\n"
        "         first difference: expected 'HND', got 'NHD'\n"
        "          expected  'HND'\n"
        "          got       'NHD'\n"
        "                    ^^^^^\n"
    ) in text
    assert "\n            {'do': 'get'},\n" in text  # the literal, a step a line
    assert "\nsteps [" not in text
    sentence = "sequences (wrong-result): an earlier answer was kept"
    assert text.index("# 3. get") < text.index(sentence)
    last = "FAIL layout_sequence [keeps_its_first_answer]: an earlier answer was kept\n"
    assert text.endswith(last)


def test_passing_sequence_is_shown_too(saved, tmp_path, capfd):
    code, text = replayed(saved, "reference", tmp_path, capfd)
    assert code == VERIFIED
    assert "  3  get\n     layout = get_kv_cache_layout()\n       layout  'NHD' -> 'HND'\n" in text
    assert "goes wrong" not in text
    assert "import" not in text  # a program that shows nothing wrong is no news


def test_program_of_a_failing_sequence_runs(saved, candidate, tmp_path, capfd, forked):
    _, text = replayed(saved, candidate, tmp_path, capfd)
    program = re.search(r"\n\n(import sys\n.*?\nprint\(seen\))\n\n", text, re.DOTALL)[1]
    ran = forked(lambda: exec(program, {"__name__": "__main__"}))
    assert (ran.returncode, ran.stdout) == (0, "{'layout': 'NHD'}\n"), ran.stderr


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("vllm", "/tmp/it is mine.py", "--out o --candidate '/tmp/it is mine.py'"),
        ("mine.py", "", "--out o --candidate mine.py"),
        ("mine", "my_plugin.metadata", "--out o --candidate my_plugin.metadata"),
    ],
)
def test_a_case_cannot_select_code(tmp_path, name, target, words):
    path = tmp_path / "a case.json"
    case = Case("layout_sequence", None, {"steps": STEPS})
    write_case(path, CaseFile(case=case, candidate=name, target=target))
    with pytest.raises(UsageError, match="cannot select") as refused:
        replay(ReplayOptions(case=str(path), out=tmp_path), command="attnproof replay x --out o")
    assert str(refused.value).endswith(f"attnproof replay x {words}")


def test_a_process_left_behind_fails_again(tmp_path, capfd):
    path, leaver = tmp_path / "case.json", tmp_path / "leaver.py"
    write_case(path, CaseFile(case=Case("is_block_tables_empty", None, {"block_tables": None})))
    leaver.write_text(
        "import subprocess\n"
        "def is_block_tables_empty(block_tables):\n"
        "    subprocess.Popen(['sleep', '99'])\n"
        "    return True\n"
    )
    code, text = replayed(path, leaver, tmp_path, capfd)
    assert code == MISMATCH
    assert "process (unsafe): the candidate leaves processes behind" in text


def test_a_case_selects_an_installed_candidate(saved, tmp_path, capfd):
    case = Case("layout_sequence", None, {"steps": STEPS})
    write_case(saved, CaseFile(case=case, candidate="optimized", target="attnproof.optimized"))
    assert replay(ReplayOptions(case=str(saved), out=tmp_path)) == VERIFIED
    assert "PASS layout_sequence [optimized]" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("params", "place"),
    [
        ({"steps": [{"do": "set", "layout": "__import__('os')"}]}, "`$.steps[0].layout`"),
        ({"steps": [{"do": "run"}]}, "Invalid value 'run'"),
        ({"steps": [{"do": "get", "twice": 1}]}, "unknown field `twice`"),
        ({"steps": [{"do": "get"}] * 1001}, "length <= 1000"),
        ({}, "missing required field `steps`"),
    ],
)
def test_a_case_is_data_of_the_declared_types(tmp_path, params, place):
    path = tmp_path / "case.json"
    write_case(path, CaseFile(case=Case("layout_sequence", None, params)))
    with pytest.raises(UsageError, match="params of layout_sequence") as refused:
        replay(ReplayOptions(case=str(path), out=tmp_path))
    assert place in str(refused.value)


def test_parameters_are_explained_and_arguments_listed(tmp_path, capfd):
    path, wrong = tmp_path / "case.json", tmp_path / "wrong.py"
    wrong.write_text("def paged_attention(*a, **k):\n    k['out'].zero_()\n")
    batch = make_batch([1], [2], 2, spare_columns=1)
    write_case(path, CaseFile(case=Case("paged_attention", batch, LAYER | {"out": "float32"})))
    code, text = replayed(path, wrong, tmp_path, capfd)
    assert code == MISMATCH
    assert "\nwindow 0  (Sliding window in tokens, 0 for none)\n" in text
    assert "\nquery_start_loc = [0 1]  int32 [2] cpu, stride [1]\n" in text
    assert "\nmax_seq_len = 3\n" in text
    assert re.search(r"\nkey_cache  float\d+ \[\d+, 2, 1, \d+\] cpu, stride", text)
    assert re.search(r"\nout  float32 \[1, 1, \d+\] cpu, stride \[\d+, \d+, 1\]\n", text)


def test_words_of_a_cache_are_shown_as_floats(tmp_path, capfd):
    path, wrong = tmp_path / "case.json", tmp_path / "wrong.py"
    wrong.write_text(
        "from attnproof.reference import reshape_and_cache_flash as right\n"
        "def reshape_and_cache_flash(key, *others):\n    right(key * 2, *others)\n"
    )
    write_case(path, CaseFile(case=Case("reshape_and_cache_flash", make_batch([1], [0], 2), PLAIN)))
    code, text = replayed(path, wrong, tmp_path, capfd)
    assert code == MISMATCH
    assert re.search(r"\nkey_cache  float16 \[\d+, 2, 1, 4\] cpu\n", text)
    shown = re.search(r"equality \(wrong-result\): .* is (\S+), expected (\S+)\n", text)
    assert float(shown[1]) == pytest.approx(2 * float(shown[2]), rel=1e-4)
    assert f"expected {shown[2]}, got {shown[1]}; 4 of " in text
