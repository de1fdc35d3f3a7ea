"""Further calls are made after cases of engines, as far as there are some."""

from __future__ import annotations

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.further_calls import real_ones

SLICE = "slice_query_start_locs"


def sourced(*query_lens):
    batch = make_batch(list(query_lens), [3] * len(query_lens), 4)
    return Sourced(Case(SLICE, batch, {"start": 0, "stop": len(query_lens)}), "boundary")


def test_real_cases_take_the_places_of_unreal_ones():
    unreal, other, real, more = sourced(), sourced(0), sourced(1, 2), sourced(2, 2)
    operation = ALL[SLICE]
    wanted = [True, True, False, False]
    cases = [unreal, other, real, more]
    assert [bool(operation.why_unreal(one.case)) for one in cases] == wanted
    assert real_ones(operation, [unreal, real], cases) == [more, real]
    assert real_ones(operation, [unreal, other, real], cases) == [more, other, real]
    assert real_ones(operation, [unreal], [unreal]) == [unreal]
