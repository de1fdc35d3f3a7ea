"""Further calls are made after cases of engines, as far as there are some."""

from __future__ import annotations

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Case, Sourced
from attnproof.harness.model.verdict import Verdict
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.further_calls import failures_of_further_calls, real_ones

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


class Recorder:
    """A worker that finds nothing and keeps what it is asked."""

    candidate = Candidate("own", "own", "cpu")

    def __init__(self):
        self.calls = []

    def in_interface(self, case):
        return case

    def outputs(self, _case):
        return {}

    def call_after(self, _case, other, *, in_place=False):
        self.calls.append((other.id, in_place))
        return Verdict((), ())

    def call_within(self, _case, _other):
        return Verdict((), ())


def calls_after(case, turn=None):
    worker = Recorder()
    assert failures_of_further_calls(worker, case, None, turn) == ()
    return worker.calls


def test_cases_of_a_run_take_turns_at_further_calls():
    case = sourced(1, 2, 3).case
    every = calls_after(case)
    turns = [calls_after(case, turn) for turn in range(len(every))]
    assert all([in_place for _, in_place in made] == [False, True] for made in turns)
    assert {one for made in turns for one in made} == set(every)


def test_a_sparse_run_repeats_or_poisons_a_case(examine_candidate):
    whole = examine_candidate("attnproof.reference", SLICE, examples=18, sparse=False).result
    sparse = examine_candidate("attnproof.reference", SLICE, examples=18, sparse=True).result
    for result in (whole, sparse):
        assert (result.verdict, result.reason) == ("PASS", "")
    for oracle in ("determinism", "padding"):
        few, many = sparse.oracles[oracle].checks, whole.oracles[oracle].checks
        assert many / 4 < few < many * 3 / 4


def test_the_seed_decides_which_case_of_a_sparse_run_is_poisoned(examine_candidate):
    made = [
        examine_candidate("attnproof.reference", SLICE, examples=9, sparse=True, seed=seed).result
        for seed in (2, 3)
    ]
    checks = [(one.oracles["padding"].checks, one.oracles["determinism"].checks) for one in made]
    assert checks[0] != checks[1]
