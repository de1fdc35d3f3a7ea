"""Sequences of a runner's request slots: any steps are valid, and mistakes are found."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.operations import ALL
from attnproof.harness.operations.runner.lines import script
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.task.shrink import simpler

OPERATION = ALL["runner_sequence"]
BOUNDARIES = dict(OPERATION.inputs.boundaries())


def failures(case, **parts):
    """Return the failures of these parts in place of the reference's, on one side."""
    theirs = offered_by(reference, OPERATION)
    ours = theirs._replace(names=theirs.names | parts)
    return judge(Trial(OPERATION, case, ours, theirs, "cpu")).failures


@pytest.mark.parametrize("name", BOUNDARIES)
def test_every_step_of_a_boundary_applies(name, assert_applied):
    assert_applied(name, BOUNDARIES[name], script)


@pytest.mark.parametrize("case", BOUNDARIES.values(), ids=BOUNDARIES)
def test_smaller_cases_that_shrinking_tries_are_valid(case):
    every = list(simpler(case))
    for smaller in every[:: max(25, len(every) // 3)]:
        assert failures(smaller) == ()


def test_the_other_poison_pattern_has_other_blocks():
    case = BOUNDARIES["shorter request in a longer slot (K18)"]
    first, other = script(case, 0), script(case, 1)
    assert [line.label for line in first.lines] == [line.label for line in other.lines]
    assert "append_block_ids(3, ([1], [1]), False)" in first.lines[-1].code
    assert "append_block_ids(3, ([2147483646], [2147483646]), False)" in other.lines[-1].code


class StagedBeforeTheError(reference.BlockTables):
    def append_block_ids(self, req_index, new_block_ids, overwrite):
        """Leave the row of the first group without blocks if the call is refused."""
        try:
            super().append_block_ids(req_index, new_block_ids, overwrite)
        except RuntimeError:
            self._staged[0][req_index] = []
            raise


def test_a_refused_append_that_changes_a_group_is_found():
    case = BOUNDARIES["refused appends change nothing"]
    assert failures(case, BlockTables=StagedBeforeTheError)


def test_a_token_of_another_rank_is_found():
    class AllRanks(reference.BlockTables):
        def __init__(self, *args):
            super().__init__(*args[:5])

    found = failures(BOUNDARIES["two ranks, turns of 2"], BlockTables=AllRanks)
    assert "gives a slot to a token that must have none" in {f.diagnosis for f in found}
