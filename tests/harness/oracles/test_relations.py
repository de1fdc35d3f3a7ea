"""The outputs of related batches follow from each other, without a reference."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import pytest
import torch

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.relations import BLOCKS, CHUNKS, PARTS, related_cases
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.case_check import problem_of
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.task.further_calls import failures_of_further_calls
from attnproof.harness.running.task.workers import Worker

RELATED = {name: op for name, op in ALL.items() if op.contract.relations is not None}
_CASES = 12


def outputs(operation, case):
    function = offered_by(reference, operation)
    return Trial(operation, case, function, function, "cpu").expected


def judged(operation):
    """Yield the outputs of boundary cases and of their related cases, with the judge."""
    for _, case in operation.inputs.boundaries():
        for cases, judge in related_cases(operation, case):
            if not any(map(problem_of, cases)):
                yield outputs(operation, case), [outputs(operation, one) for one in cases], judge


@pytest.mark.parametrize("name", RELATED)
def test_the_reference_satisfies_the_relations(name):
    count = 0
    for whole, made, judge in islice(judged(RELATED[name]), _CASES):
        assert list(judge(whole, *made)) == []
        count += 1
    assert count > 2


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name, op in RELATED.items() for field in op.contract.relations.joined],
)
def test_an_entry_that_does_not_follow_is_found(name, field):
    found = set()
    for whole, made, judge in judged(RELATED[name]):
        place = next((place for place in whole if place.root == field), None)
        if place is None or not isinstance(whole[place], torch.Tensor) or not len(made[0][place]):
            continue
        wrong = whole[place].clone()
        wrong.view(-1)[0] += 1
        found |= {(one.field, one.diagnosis) for one in judge(whole | {place: wrong}, *made)}
    assert (field, PARTS) in found


def call_of(batch, name="build_slot_mapping"):
    return Case(name, batch, {"num_padded": None, "out_spare": None})


def of_earlier_requests(right):
    """Return slots that depend on the number of requests."""

    def build_slot_mapping(query_start_loc, *args, **kwargs):
        made = right(query_start_loc, *args, **kwargs)
        return made + (len(query_start_loc) > 3)

    return build_slot_mapping


def of_the_query(right):
    """Return slots that depend on the length of the query."""

    def build_slot_mapping(query_start_loc, *args, **kwargs):
        made = right(query_start_loc, *args, **kwargs)
        return made + (int(query_start_loc[-1] - query_start_loc[-2]) == 6)

    return build_slot_mapping


def of_block_ids(right):
    """Return slots that depend on the ids."""

    def build_slot_mapping(query_start_loc, *args, **kwargs):
        made = right(query_start_loc, *args, **kwargs)
        return made + (made == 0)

    return build_slot_mapping


@pytest.mark.parametrize(
    ("wrong", "batch", "diagnosis"),
    [
        (of_earlier_requests, make_batch([2, 3, 1], [0, 4, 7], 4), PARTS),
        (of_the_query, make_batch([6], [3], 4), CHUNKS),
        (of_block_ids, make_batch([3], [0], 4), BLOCKS),
    ],
)
def test_a_mistake_of_both_sides_is_found(monkeypatch, wrong, batch, diagnosis):
    function = wrong(reference.build_slot_mapping)
    monkeypatch.setattr(reference, "build_slot_mapping", function)
    monkeypatch.setitem(globals(), "backend", SimpleNamespace(build_slot_mapping=function))
    operation = ALL["build_slot_mapping"]
    worker = Worker(
        Candidate("wrong", f"{__name__}:backend"),
        {operation.name: operation},
        timeout_s=20,
        memory_bytes=1 << 30,
    )
    try:
        failures = failures_of_further_calls(worker, call_of(batch))
    finally:
        worker.stop()
    assert [(one.oracle, one.diagnosis) for one in failures] == [("invariants", diagnosis)]
