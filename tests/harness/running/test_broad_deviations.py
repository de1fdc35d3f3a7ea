"""Entries that would hide a new bug: a note on each, and the refusal of one that hides all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.task.broad_deviations import broad_entries
from attnproof.harness.running.task.deviations import (
    DeviationError,
    deviations_of,
    load,
    with_deviations,
)

SPLIT = "split_decodes_and_prefills"
PAGE = Path(__file__).parents[3] / "docs" / "deviations.md"
ENTRY = """
[[deviation]]
id = "{id}"
title = "wrong"
operations = ["{operation}"]
versions = "*"
reference = "an issue"
when = "{when}"
"""


@pytest.fixture
def entry(tmp_path):
    """Write a file with one entry; return its path."""

    def write(operation=SPLIT, when="True", more="", name="known.toml", key="D1"):
        path = tmp_path / name
        path.write_text(ENTRY.format(id=key, operation=operation, when=when) + more)
        return str(path)

    return write


@pytest.mark.parametrize(
    ("when", "why"),
    [
        ("True", "no condition"),
        ("1 < 2", "no condition"),
        ("R >= 0", "a condition that all edge cases meet"),
        ("not fault", "a condition that all edge cases meet"),
    ],
)
def test_an_entry_for_all_failures_is_named(entry, when, why):
    [note] = broad_entries([entry(when=when)], [ALL[SPLIT]])
    assert f"entry D1 of {entry(when=when)} hides any failure of {SPLIT}: it has {why}" in note


@pytest.mark.parametrize(
    ("when", "more"),
    [
        ("padded_requests > 0", ""),
        ("False", ""),
        ("True", 'fields = ["num_*"]'),
        ("True", 'diagnoses = ["off by one"]'),
        ("True", 'oracles = ["errors"]'),
    ],
)
def test_an_entry_with_a_limit_is_fine(entry, when, more):
    assert broad_entries([entry(when=when, more=more)], [ALL[SPLIT]]) == []


def test_an_entry_of_another_operation_is_not_judged(entry):
    assert broad_entries([entry("is_block_tables_empty")], [ALL[SPLIT]]) == []


def test_a_file_that_hides_everything_is_refused(entry):
    with pytest.raises(DeviationError, match="entry D1 hides every failure of every operation"):
        broad_entries([entry("*")], [ALL[SPLIT]])
    with pytest.raises(DeviationError, match="entry D1 hides every failure of every operation"):
        broad_entries([entry("*", "R >= 0")], ALL.values())


def test_nothing_is_written_for_a_file_that_hides_everything(entry, attnproof, tmp_path):
    done = attnproof("verify", "--deviations", entry("*"), "--out", "r", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["known.toml"]


def test_an_entry_for_all_operations_covers_each(entry):
    [known] = load(entry("*", "fault != ''"), "")
    assert known.covers(SPLIT)
    assert broad_entries([entry("*", "fault != ''")], [ALL[SPLIT]]) == []


def test_several_files_and_shipped_lists_are_joined(entry):
    names = [entry(when="R > 3"), "vllm:0.11", entry(when="R > 4", name="b.toml", key="D2")]
    [candidate] = with_deviations([Candidate("own", "own")], names)
    ids = {one.id for one in deviations_of(candidate)}
    assert {"D1", "D2", "E1"} <= ids
    older = with_deviations([Candidate("own", "own")], ["vllm:0.10"])[0]
    assert {one.id for one in deviations_of(older)} != ids - {"D1", "D2"}


@pytest.mark.parametrize("name", ["vllm:0.10", "vllm:0.11.2", "vllm-triton:0.32", "sglang:0.5"])
def test_shipped_lists_have_entries(name):
    [candidate] = with_deviations([Candidate("own", "own", "interpreter")], [name])
    assert deviations_of(candidate)


def test_mistakes_in_names_are_one_line(entry):
    own = [Candidate("own", "own")]
    with pytest.raises(UsageError, match="--deviations vllm:9: no such list, expected a file or"):
        with_deviations(own, ["vllm:9"])
    with pytest.raises(DeviationError, match="cannot be read: No such file"):
        with_deviations(own, ["nowhere.toml"])
    with pytest.raises(DeviationError, match=f"two entries D1 hold for {SPLIT}"):
        with_deviations(own, [entry(when="R > 1"), entry("*", "R > 2", name="b.toml")])


def test_examples_of_the_page_are_read(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        path = tmp_path / f"{number}.toml"
        path.write_text(example, encoding="utf-8")
        assert load(str(path), "0.11.2")
