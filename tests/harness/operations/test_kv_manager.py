"""The sequence of a KV-cache manager: any steps are valid, and its choices are free."""

from __future__ import annotations

import pytest

from attnproof import reference
from attnproof.harness.operations import ALL
from attnproof.harness.operations.kv_manager.lines import script
from attnproof.harness.operations.kv_manager.requests import Requests
from attnproof.harness.operations.kv_manager.steps import groups_of, sizes_of
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.task.shrink import simpler

OPERATION = ALL["kv_manager"]
BOUNDARIES = dict(OPERATION.inputs.boundaries())


def failures(case, manager=reference.KVCacheManager):
    """Return the failures of a manager beside the reference."""
    theirs = offered_by(reference, OPERATION)
    ours = theirs._replace(names=theirs.names | {"KVCacheManager": manager})
    return judge(Trial(OPERATION, case, ours, theirs, "cpu")).failures


def diagnoses(name, manager):
    """Return how a mistake is named on a boundary."""
    return {failure.diagnosis for failure in failures(BOUNDARIES[name], manager)}


@pytest.mark.parametrize("name", BOUNDARIES)
def test_every_step_of_a_boundary_applies(name, assert_applied):
    assert_applied(name, BOUNDARIES[name], script)


@pytest.mark.parametrize("case", BOUNDARIES.values(), ids=BOUNDARIES)
def test_smaller_cases_that_shrinking_tries_are_valid(case):
    every = list(simpler(case))
    for smaller in every[:: max(25, len(every) // 3)]:
        assert failures(smaller) == ()


class OtherIds(reference.KVCacheManager):
    """Takes the free blocks of a new pool from the other end."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._pool._queue.reverse()


class NewestBlocks(reference.KVCacheManager):
    """Adopts the newest of several blocks with one content."""

    def _choices(self, *args):
        return [ids[::-1] for ids in super()._choices(*args)]


class OtherGroupFirst(reference.KVCacheManager):
    """Frees the blocks of the last group first."""

    def free(self, request):
        tables = []
        self._pool.release = lambda blocks: tables.append(list(blocks))
        super().free(request)
        del self._pool.release
        for table in reversed(tables):
            self._pool.release(table)


@pytest.mark.parametrize("manager", [OtherIds, NewestBlocks, OtherGroupFirst])
@pytest.mark.parametrize("case", BOUNDARIES.values(), ids=BOUNDARIES)
def test_choices_of_a_manager_are_free(case, manager):
    assert failures(case, manager) == ()


class Shared(reference.KVCacheManager):
    """Gives every request the same block for its last tokens."""

    def allocate_slots(self, request, *args):
        blocks = super().allocate_slots(request, *args)
        for table in self._tables.values():
            table[0][-1] = 8
        return blocks


def test_a_block_of_two_requests_is_found():
    assert "name other blocks than were allocated" in diagnoses(
        "full: a prefix in use is shared", Shared
    )


class Unknown(reference.KVCacheManager):
    """Names a block behind the pool."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        take = self._pool.take
        self._pool.take = lambda needed: [block + 90 for block in take(needed)]

    def _publish(self, *args):
        pass


def test_a_block_outside_the_pool_is_found():
    assert "name NULL or no block of the pool" in diagnoses("full: no caching", Unknown)


class Leaking(reference.KVCacheManager):
    """Loses the blocks of a request that leaves."""

    def free(self, request):
        self._tables.pop(request.request_id, None)


def test_a_lost_block_is_found():
    assert "lacks a block" in diagnoses("full: no caching", Leaking)


def test_a_request_rejoins_another_behind_one_token():
    requests = Requests(16)
    requests.add("r0", 6, "", 0, False)
    other = requests.add("r1", 8, "r0", 2, True)
    first = requests.by_name["r0"].token_ids
    assert other.token_ids[:2] == first[:2]
    assert other.token_ids[2] != first[2]
    assert other.token_ids[3:6] == first[3:]
    assert other.token_ids[6:] == [2006, 2007]


def test_any_numbers_are_sizes():
    nothing = {"num_blocks": 0, "block_size": 0, "groups": [], "max_model_len": 0}
    sizes = sizes_of(nothing | {"caching": True, "hash_lookahead": 0})
    assert sizes == (2, [reference.CacheGroup("full", 1)], 1, True, 0, 0.0, None)
    assert (
        sizes_of(nothing | {"groups": groups_of([1]), "caching": True, "hash_lookahead": 0})
        .groups[0]
        .window
        == 2
    )


class AlwaysReset(reference.KVCacheManager):
    """Answers that all prefixes are forgotten."""

    def reset_prefix_cache(self):
        return True


def test_a_wrong_answer_is_found_under_its_own_name():
    found = failures(BOUNDARIES["full: reset in use, and not in use"], AlwaysReset)
    fields = {failure.field for failure in found if failure.oracle == "sequences"}
    assert fields == {"[].reset"}
    assert {failure.diagnosis for failure in found} == {"forgets prefixes while blocks are in use"}


class Wasteful(reference.KVCacheManager):
    """Gives each step a block more than it needs."""

    def allocate_slots(self, request, new, hits=0, blocks=None, lookahead=0):
        return super().allocate_slots(request, new, hits, blocks, lookahead + 4)


def test_of_the_wrong_answers_of_a_step_the_first_is_reported():
    found = failures(BOUNDARIES["full: no caching"], Wasteful)
    (failure,) = (each for each in found if each.oracle == "sequences")
    assert failure.field == "[].blocks"
