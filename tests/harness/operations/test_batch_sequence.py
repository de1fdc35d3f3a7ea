"""Sequences of a persistent batch: any steps are valid, and mistakes are diagnosed."""

from __future__ import annotations

import msgspec
import pytest

from attnproof import reference
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.operations.persistent_batch.steps import engine_after, script
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.task.shrink import simpler

OPERATION = ALL["batch_sequence"]
BOUNDARIES = dict(OPERATION.inputs.boundaries())
STEPS = BOUNDARIES["shorter request in a longer row (K18)"]


def failures(batch, case):
    """Return the failures of a class in place of the reference's `PersistentBatch`."""
    theirs = offered_by(reference, OPERATION)
    ours = theirs._replace(names=theirs.names | {"PersistentBatch": batch})
    return judge(Trial(OPERATION, case, ours, theirs, "cpu")).failures


def diagnoses(batch, name):
    return {failure.diagnosis for failure in failures(batch, BOUNDARIES[name])}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_every_step_of_a_boundary_applies(name, assert_applied):
    assert_applied(name, BOUNDARIES[name], script)


@pytest.mark.parametrize("case", BOUNDARIES.values(), ids=BOUNDARIES)
def test_every_smaller_case_that_shrinking_tries_is_valid(case):
    every = list(simpler(case))
    count = min(10, max(1, 200 // len(case.params["steps"])))  # each runs all of the steps
    for smaller in every[:: max(5, len(every) // count)]:
        assert failures(reference.PersistentBatch, smaller) == ()


def test_the_other_poison_pattern_has_other_blocks():
    first, other = script(STEPS, 0), script(STEPS, 1)
    assert [line.label for line in first.lines] == [line.label for line in other.lines]
    assert "[1, 2, 3]" in first.lines[0].code
    assert "[2147483646, 2147483645, 2147483644]" in other.lines[0].code


def test_a_freed_block_gets_the_next_request_as_owner():
    assert engine_after(STEPS, 0).owner(1) == "a"
    assert engine_after(STEPS, 2).owner(1) is None
    assert engine_after(STEPS, 3).owner(1) == "b"
    assert engine_after(STEPS, 3).owner(2**31 - 2) == "b"


class Swapped(reference.PersistentBatch):
    def swap_states(self, i, j):
        super().swap_states(i, j)
        self.num_computed_tokens[j] = self.num_computed_tokens[i]


class Forgetful(reference.PersistentBatch):
    def add_request(self, req_id, block_ids, num_computed_tokens=0):
        earlier = self.num_computed_tokens.clone()
        row = super().add_request(req_id, block_ids, num_computed_tokens)
        self.num_computed_tokens[row] = max(int(earlier[row]), num_computed_tokens)
        return row


class Tail(reference.PersistentBatch):
    def build(self, *args):
        earlier = self.slot_mapping.clone()
        made = super().build(*args)
        self.slot_mapping[made.num_actual_tokens :] = earlier[made.num_actual_tokens :]
        return made


class Moving(reference.PersistentBatch):
    def build(self, *args):
        self._seq_lens = self._seq_lens.clone()
        return super().build(*args)


class Lenient(reference.PersistentBatch):
    def remove_request(self, req_id):
        return super().remove_request(req_id) if req_id in self.req_ids else -1


class Half(reference.PersistentBatch):
    def append_blocks(self, req_id, block_ids):
        row = self.req_ids.index(req_id) if req_id in self.req_ids else 0
        self.num_computed_tokens[row] += 1
        super().append_blocks(req_id, block_ids)


@pytest.mark.parametrize(
    ("batch", "boundary", "words"),
    [
        (Swapped, "swapped rows (K12)", "both rows hold the same request"),
        (
            Forgetful,
            "shorter request in a longer row (K18)",
            "a row keeps an earlier request's state",
        ),
        (Tail, "padded rows after more requests (K13)", "a valid slot where none is due"),
        (Moving, "tokens of three steps", "a step buffer changed its address"),
        (Lenient, "refused steps change nothing", "accepts malformed input"),
        (Half, "refused steps change nothing", "num_computed_tokens is wrong"),
    ],
)
def test_a_mistake_is_diagnosed(batch, boundary, words):
    assert words in diagnoses(batch, boundary)


def test_a_failure_names_the_number_of_its_step():
    steps = [
        {"do": "add", "blocks": 1, "tokens": 0},
        {"do": "build", "lens": [1], "pad_reqs": 0, "pad_tokens": 0},
        {"do": "build", "lens": [0], "pad_reqs": 0, "pad_tokens": 0},
    ]
    case = Case(OPERATION.name, None, STEPS.params | {"steps": steps})
    (failure,) = [f for f in failures(Tail, case) if f.oracle == "sequences"]
    assert failure.message.startswith("after step 3 (build a: 0): [2].slot_buffer[0] is 4")
    assert failures(Tail, msgspec.structs.replace(case, params=case.params | {"steps": []})) == ()


class Neighbour(reference.PersistentBatch):
    def build(self, *args):
        made = super().build(*args)
        made.slot_mapping += 1
        return made


def test_sizes_that_shrink_to_0_count_as_1():
    steps = [{"do": "add", "blocks": 1, "tokens": 0}, STEPS.params["steps"][1]]
    sizes = dict.fromkeys(("max_num_reqs", "max_num_tokens", "max_num_blocks", "block_size"), 0)
    case = Case(OPERATION.name, None, sizes | {"steps": steps})
    assert "PersistentBatch(1, 1, 1, 1)" in script(case, 0).setup_code
    words = {f.diagnosis for f in failures(Neighbour, case) if f.oracle == "sequences"}
    assert words == {"a block that no request owns"}
