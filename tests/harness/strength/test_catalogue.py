"""The catalogue is complete and consistent; planting is undone; differences are reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from attnproof import optimized, reference
from attnproof.harness.model.verdict import ORACLES, Kind
from attnproof.harness.operations import ALL
from attnproof.harness.running.loading import load, offered_by
from attnproof.harness.strength.catalogue import all_mutations, find
from attnproof.harness.strength.running import Found, Result, planted
from attnproof.harness.strength.text_mutations import changed, read_mutations
from attnproof.reference.definition.definition import built_in_definition

MUTATIONS = all_mutations()
KNOWN_BUGS = Path(__file__).parents[3] / "docs" / "KNOWN_BUGS.md"
NOT_PLANTED = {"K4", "K6"}  # an error is the right answer: boundaries and faults test it


def test_every_known_bug_is_planted():
    documented = set(re.findall(r"^\| (K\d+) ", KNOWN_BUGS.read_text(), re.MULTILINE))
    planted_ids = {one.id.rstrip("b") for one in MUTATIONS if one.source}
    assert planted_ids == documented - NOT_PLANTED


def test_names_are_unique():
    names = [one.name for one in MUTATIONS]
    assert len(names) == len(set(names)) > 60


def test_several_mutations_may_repeat_one_known_bug():
    assert {one.operation for one in find("K18")} == {"build_slot_mapping", "batch_sequence"}
    assert [one.id for one in find("repeated tile")] == ["K19"]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_complete_and_planted_in_a_copy_only(mutation):
    right = [getattr(package, mutation.part) for package in (reference, optimized)]
    assert mutation.description.endswith(".")
    assert getattr(mutation, mutation.examined or "both")
    assert set(mutation.one) | set(mutation.both or ()) <= set(ORACLES)
    assert not mutation.boundary or mutation.boundary in dict(
        ALL[mutation.operation].inputs.boundaries()
    )
    with planted(mutation, "one") as candidate:
        assert offered_by(load(candidate), ALL[mutation.operation]) is not None
    with planted(mutation, "both"):
        assert getattr(reference, mutation.part) is not right[0]
        assert getattr(optimized, mutation.part) is not right[1]
    assert [getattr(package, mutation.part) for package in (reference, optimized)] == right


@pytest.mark.parametrize(("before", "count"), [("slots.pop(", 0), ("slots.append(", 2)])
def test_a_text_that_does_not_occur_once_is_refused(before, count):
    with pytest.raises(ValueError, match=f"occurs {count} times, expected once"):
        changed("build_slot_mapping", "build_slot_mapping", before, "")


@pytest.mark.parametrize("line", ["diagnosis = ['x']", "name = 'x'", ""])
def test_a_table_with_an_unknown_key_or_without_one_is_named(tmp_path, line):
    path = tmp_path / "slots.toml"
    path.write_text(f"[build_slot_mapping.no_blocks]\nbefore = 'a'\n{line}\n")
    with pytest.raises(ValueError, match=r"slots.toml, table \[build_slot_mapping.no_blocks\]: "):
        list(read_mutations(path))


def test_a_changed_text_leaves_the_operations_definition():
    definition = built_in_definition("alloc_extend")
    (mutation,) = find("last token written over")
    assert mutation.candidate.alloc_extend is not reference.alloc_extend
    assert built_in_definition("alloc_extend") is definition


def test_differences_from_the_catalogue_are_reported():
    (mutation,) = find("K1")
    assert Result(mutation, {}, [], 200).differences() == ["not found in 200 cases"]
    found = Found(
        "wrong order", "num_reqs: wrong order", requests=4, tokens=17, steps=0, kind=Kind.TYPE
    )
    objecting = {"one": {"purity"}, "both": {*mutation.both, "cost"}}
    assert Result(mutation, objecting, [found], 200).differences() == [
        "planted in the candidate: equality does not object",
        "planted on both sides: cost objects too",
        "not found under the engine contract",
        "another diagnosis: num_reqs: wrong order",
        "4 requests in the shrunk case, expected at most 3",
        "17 tokens in the shrunk case, expected at most 16",
    ]
