"""Files of `attnproof mutants` and `attnproof strength`, as the report reads them."""

from __future__ import annotations

import msgspec
import pytest

from attnproof.harness.model.strength import Strength
from attnproof.harness.running.errors import UsageError
from attnproof.harness.strength.files import MUTANTS, RECALL, read_strength
from attnproof.harness.strength.mutants.mutant import Mutant, Result
from attnproof.harness.strength.pairs.catalogue import all_pairs
from attnproof.harness.strength.recall import Sighting
from attnproof.harness.verbs.mutants import _record as mutants_record
from attnproof.harness.verbs.options import MutantsOptions, StrengthOptions
from attnproof.harness.verbs.strength import _record as strength_record


def result(index, operation, fate, oracle=""):
    mutant = Mutant("/folder/split.py", "split", 7, "comparison", index, "a < b", "a <= b")
    change = "- return a < b\n+ return a <= b\n"
    return Result(mutant, operation, fate, oracle=oracle, cases=9, change=change)


def sighting(pair, side, *findings, **fields):
    found = {"seed": 1, "cases": 50, "seconds": 1.5, "findings": list(findings), "advice": []}
    return Sighting(pair=pair, side=side, **found | fields)


@pytest.fixture
def mutants(tmp_path):
    """Results of two operations: one mutant survives in the first, and is killed in the second."""

    class Optimized:
        name = "optimized"

    results = [
        result(0, "first", "killed", "equality"),
        result(1, "first", "timed out"),
        result(2, "first", "survived"),
        result(3, "first", "survived"),
        result(4, "first", "equivalent"),
        result(5, "first", "not planted"),
        result(3, "second", "killed", "consumer"),
    ]
    path = tmp_path / "mutants.json"
    path.write_bytes(msgspec.json.encode(mutants_record(results, Optimized, 0.75)))
    return path


@pytest.fixture
def recall(tmp_path):
    seen = [
        sighting(0, "before", "equality: wrong", oracle="equality", requests=2, tokens=3),
        sighting(0, "before"),
        sighting(1, "before"),
        sighting(0, "after"),
        sighting(1, "after", "purity: alarm", oracle="purity"),
    ]
    path = tmp_path / "strength.json"
    path.write_bytes(msgspec.json.encode(strength_record(seen)))
    return path


def test_mutants_are_counted_by_operation(mutants):
    found, faults = read_strength([mutants])
    assert not faults
    assert found.recall is None
    made = found.mutants
    assert (made.candidate, made.score, made.path) == ("optimized", 0.75, str(mutants))
    first, second = made.operations
    counts = (first.killed, first.timed_out, first.survived, first.equivalent)
    assert counts == (1, 1, 2, 1)
    assert first.oracles == {"equality": 1, "timed out": 1}
    assert (first.score, second.score) == (0.5, 1.0)


def test_a_survivor_is_one_that_no_operation_kills(mutants):
    (survivor,) = read_strength([mutants])[0].mutants.survivors
    assert (survivor.operation, survivor.place) == ("first", "split.py:7")
    assert survivor.change == "- return a < b\n+ return a <= b\n"


def test_runs_on_bugs_that_shipped_are_counted_by_bug(recall):
    found = read_strength([recall])[0].recall
    assert (found.found, found.runs, found.alarms, found.correct) == (1, 3, 1, 2)
    first, second = found.bugs
    assert first.thread == all_pairs()[0].id
    assert (first.found, first.runs, first.oracles) == (1, 2, ("equality",))
    assert (first.requests, first.tokens) == (2, 3)
    assert (second.found, second.oracles, second.tokens) == (0, (), 0)


def test_both_files_are_read_together(mutants, recall):
    found, _ = read_strength([mutants, recall])
    assert found.mutants
    assert found.recall


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "is damaged"),
        (b'{"schema": "attnproof.mutants/1"}', "is damaged"),
        (b'{"schema": "attnproof.summary/1"}', "is no file of `attnproof mutants`"),
        (b"[]", "is no file of `attnproof mutants`"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_named_must_be_readable(tmp_path, data, words):
    path = tmp_path / "named.json"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError, match=words):
        read_strength([path])


def test_files_of_the_usual_places_are_read_if_they_exist(tmp_path, monkeypatch, mutants):
    monkeypatch.chdir(tmp_path)
    assert read_strength([]) == (Strength(), [])
    MUTANTS.parent.mkdir(parents=True)
    MUTANTS.write_bytes(mutants.read_bytes())
    assert read_strength([])[0].mutants.score == 0.75
    MUTANTS.write_bytes(b"{")
    found, (fault,) = read_strength([])
    assert found.mutants is None
    assert "reports/mutants/mutants.json is damaged" in fault


def test_the_usual_places_are_those_of_the_verbs():
    assert MutantsOptions().out == MUTANTS.parent
    assert StrengthOptions().out == RECALL.parent
