"""`attnproof deviations --draft`: the drafted file explains the run, and nothing is replaced."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.task.deviations import load
from attnproof.harness.verbs.draft import draft, write_draft
from attnproof.harness.verbs.options import DeviationsOptions

ROOT = Path(__file__).parents[3]
WRONG = ROOT / "examples" / "wrong_backend.py"
RUN = ("--candidate", WRONG, "--examples", "40", "--steps", "10", "--seed", "1", "--no-remember")


@pytest.fixture(scope="module")
def failed(attnproof, tmp_path_factory):
    """Return the folder of a run with two findings."""
    folder = tmp_path_factory.mktemp("draft")
    ops = ("--ops", "split_decodes_and_prefills,build_slot_mapping")
    done = attnproof("verify", *RUN, *ops, "--out", "first", cwd=folder)
    assert done.returncode == 1, done.stderr
    return folder


@pytest.mark.slow
def test_the_drafted_file_explains_the_run(failed, attnproof):
    done = attnproof("deviations", "--draft", "first", "--out", "known.toml", cwd=failed)
    assert (done.returncode, done.stderr) == (0, "")
    ops = ("--ops", "split_decodes_and_prefills,build_slot_mapping")
    again = attnproof(
        "verify", *RUN, *ops, "--deviations", "known.toml", "--out", "second", cwd=failed
    )
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("DEVIATES") == 2
    assert "note: known deviations" not in again.stdout


def test_an_entry_has_diagnosis_case_and_condition(failed):
    path = failed / "drafted.toml"
    path.write_text(draft(failed / "first" / "summary.json"), encoding="utf-8")
    split = next(d for d in load(str(path), "") if "split_decodes" in d.operations[0])
    assert "padded_requests > 0" in split.when
    assert "params.get('require_uniform')" in split.when
    assert set(split.fields) >= {"num_decodes", "num_prefills"}
    assert split.lanes == ("cpu",)
    text = path.read_text(encoding="utf-8")
    cases = re.findall(r"^# attnproof replay (\S+)$", text, re.MULTILINE)
    assert len(cases) == 2
    assert all(Path(case).is_file() for case in cases)
    assert re.search(r"^# It hides failures of \d+ more edge cases", text, re.MULTILINE)
    assert "# zero-length (padded) rows miscounted: num_decodes is" in text


def test_a_file_that_exists_is_kept(failed):
    path = failed / "mine.toml"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match=r"mine\.toml exists: name another file"):
        write_draft(DeviationsOptions(draft=failed / "first", out=path))
    assert path.read_text(encoding="utf-8") == "mine"


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a run"):
        write_draft(DeviationsOptions(draft=tmp_path, out=tmp_path / "known.toml"))
    assert not list(tmp_path.iterdir())


def test_a_run_without_findings_has_no_draft(attnproof, tmp_path):
    (tmp_path / "right.py").write_text("from attnproof.reference import is_block_tables_empty\n")
    words = ("--candidate", "right.py", "--ops", "is_block_tables_empty", "--examples", "5")
    attnproof("verify", *words, "--steps", "0", "--no-remember", "--out", "r", cwd=tmp_path)
    done = attnproof("deviations", "--draft", "r", "--out", "k.toml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "attnproof: r has no finding: there is nothing to draft\n"
    assert not (tmp_path / "k.toml").exists()


@pytest.mark.slow
def test_operations_that_ran_without_wrong_functions_have_an_entry(attnproof, tmp_path):
    first = attnproof("verify", *RUN, "--out", "first", cwd=tmp_path)
    assert first.returncode == 1
    attnproof("deviations", "--draft", "first", "--out", "known.toml", cwd=tmp_path)
    again = attnproof("verify", *RUN, "--deviations", "known.toml", "--out", "r", cwd=tmp_path)
    assert again.returncode == 0, again.stdout
    assert "hides any failure of batch_sequence" in again.stdout
