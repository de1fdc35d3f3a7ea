"""Every operation has timed cases with an engine's arguments, or a reason for none."""

from __future__ import annotations

from itertools import pairwise

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.steps.workloads import (
    KINDS,
    REQUESTS,
    make_step,
    synthetic_batches,
    timed_batch,
    trace_steps,
)
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Sourced
from attnproof.harness.model.run import OperationResult
from attnproof.harness.model.timing import Step, Steps
from attnproof.harness.model.verdict import Failure
from attnproof.harness.operations import ALL
from attnproof.harness.running.task.deviations import Explained
from attnproof.harness.running.task.ledger import Ledger
from attnproof.harness.timing.plan.timetable import (
    REORDER,
    SERVED,
    STEP_OPERATIONS,
    decodes_first,
    timed_cases,
    timed_steps,
    why_never,
)
from attnproof.harness.timing.plan.verdicts import CandidateVerdicts, CaseVerdict, read_ledgers
from attnproof.harness.timing.steps import comparisons, entries
from attnproof.harness.verbs.benchmark import Benchmark, workloads
from attnproof.harness.verbs.options import TimingOptions

SMALL = [timed for timed in synthetic_batches() if timed.workload.requests in (1, 8, 64)]
SPLIT = "split_decodes_and_prefills"


@pytest.mark.parametrize("name", ALL)
def test_every_operation_has_a_workload_or_a_reason(name):
    cases = timed_cases([ALL[name]], SMALL)
    assert bool(cases) != bool(why_never(ALL[name]))


def test_equal_cases_are_timed_once():
    operations = list(ALL.values())
    cases = timed_cases(operations, [*SMALL, *SMALL])
    assert len({timed.case.id for timed in cases}) == len(cases)
    assert cases == timed_cases(operations, SMALL)


def test_no_two_cases_of_an_operation_share_a_workload():
    """The name of a workload identifies a comparison."""
    cases = timed_cases(list(ALL.values()), SMALL, real_sizes=True)
    names = [(timed.operation.name, timed.workload.name) for timed in cases]
    assert len(set(names)) == len(names)


def test_batches_that_a_gpu_serves_are_timed_there_and_not_verified_on_the_host():
    operations = [ALL[name] for name in ("decode_attention", "reshape_and_cache_flash")]
    on_a_gpu = timed_cases(operations, SMALL, real_sizes=True)
    served = [timed for timed in on_a_gpu if timed.workload.kind == SERVED]
    assert {timed.operation.name for timed in served} == {each.name for each in operations}
    assert max(timed.case.num_requests for timed in served) == 256
    assert not [c for c in timed_cases(operations, SMALL) if c.workload.kind == SERVED]
    run = Benchmark(TimingOptions(), operations, [], (), on_a_gpu, [])
    assert {case.case.id for case in run.cases}.isdisjoint(timed.case.id for timed in served)


def test_arguments_are_those_of_engines():
    (mixed,) = [timed for timed in SMALL if timed.workload.name == "mixed, 64 requests"]

    def params(name):
        return timed_cases([ALL[name]], [mixed])[0].case.params

    assert params(SPLIT) == {"decode_threshold": 1, "require_uniform": False}
    assert params("make_local_attention_virtual_batches") == {"attn_chunk_size": 8192}
    assert params("split_attn_metadata") == {"cuts": [mixed.batch.num_tokens // 2]}
    assert params("build_slot_mapping") == {"num_padded": None, "out_spare": None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("requests", REQUESTS)
def test_workloads_are_consistent_and_the_same_for_a_seed(kind, requests):
    batch = make_step(kind, requests, seed=3)
    assert batch == make_step(kind, requests, seed=3) != make_step(kind, requests, seed=4)
    lengths = [q + c for q, c in zip(batch.query_lens, batch.computed_lens, strict=True)]
    assert [len(blocks) for blocks in batch.blocks] == [-(-n // batch.block_size) for n in lengths]
    assert all(len(set(blocks)) == len(blocks) for blocks in batch.blocks)
    assert max(lengths) <= 8192
    prefills = {"decode": 0, "mixed": max(1, requests // 8), "prefill": requests}[kind]
    assert [q > 1 for q in batch.query_lens] == [False] * (requests - prefills) + [True] * prefills


def test_some_requests_share_a_prefix_and_no_request_writes_into_it():
    batch = make_step("mixed", 256)
    size = batch.block_size
    live = [block for blocks in batch.blocks for block in blocks]
    assert len(set(live)) < len(live)
    written = [
        blocks[c // size : -(-(c + q) // size)]
        for q, c, blocks in zip(batch.query_lens, batch.computed_lens, batch.blocks, strict=True)
    ]
    owned = [block for blocks in written for block in blocks]
    assert len(set(owned)) == len(owned)


def test_a_few_steps_of_each_trace_are_workloads():
    trace = trace_steps(None, 7)
    batches = workloads([trace], 0)
    assert batches[:-3] == list(synthetic_batches(0))
    assert batches[-3:] == list(trace.steps[:5:2])


def test_steps_of_a_trace_are_spread_over_it():
    trace = trace_steps(None, 5)
    numbers = [int(step.workload.name.rsplit(" ", 1)[1]) for step in trace.steps]
    assert len(numbers) == 5
    gaps = [b - a for a, b in pairwise(numbers)]
    assert numbers[0] < 3
    assert max(gaps) < 1.5 * min(gaps)


def test_a_step_reorders_the_engines_batch_and_splits_the_reordered_one():
    batch = make_batch([5, 1, 3, 1], [2, 7, 0, 4], 4)
    timed = timed_batch("a step", "trace", batch)
    trace = trace_steps(None, 1)._replace(steps=(timed,))
    (step,) = timed_steps(list(ALL.values()), trace)
    by_name = {one.operation.name: one.case for one in step.cases}
    assert tuple(by_name) == STEP_OPERATIONS
    assert by_name[REORDER].params["query_lens"] == [5, 1, 3, 1]
    assert by_name[SPLIT].batch.query_lens == (1, 1, 5, 3)
    assert decodes_first(batch).computed_lens == (7, 4, 2, 0)


def result(name, verdict, **fields):
    return OperationResult(
        name=name, section="", candidate="mine", device="cpu", verdict=verdict, **fields
    )


def failure(field="num_decodes"):
    return Failure(oracle="equality", field=field, diagnosis="off by one", message="")


def split_case():
    return timed_cases([ALL[SPLIT]], SMALL)[0].case


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        ("FAIL", "failed verification: 3 cases are wrong"),
        ("UNVERIFIED", "not verified: no such package"),
        ("NOT OFFERED", "not offered"),
    ],
)
def test_unverified_operations_are_not_timed(verdict, reason):
    why = "no such package" if verdict == "UNVERIFIED" else ""
    case = split_case()
    results = {SPLIT: result(SPLIT, verdict, failed=3, reason=why)}
    verdicts = CandidateVerdicts("cpu", results, {case.id: CaseVerdict(case.id)})
    assert verdicts.why_untimed(SPLIT, case) == reason


def test_case_is_timed_if_all_its_failures_are_known_deviations():
    case = split_case()
    known = [("E3", "equality", "num_decodes", ""), ("E3", "consumer", "", "")]

    def verdicts(*judged):
        results = {SPLIT: result(SPLIT, "DEVIATES")}
        return CandidateVerdicts("cpu", results, {one.id: one for one in judged})

    assert verdicts().why_untimed(SPLIT, case) == "not verified on this workload"
    deviating = verdicts(CaseVerdict(case.id, [], known))
    assert deviating.why_untimed(SPLIT, case) == ""
    assert deviating.deviations_on(case) == ("E3",)
    assert deviating.raising_deviations(case) == ()
    raising = verdicts(
        CaseVerdict(case.id, [], [*known, ("E6", "errors", "raises IndexError", "")])
    )
    assert raising.raising_deviations(case) == ("E6",)
    wrong = verdicts(CaseVerdict(case.id, [("equality", "num_prefills", "off by one")], known))
    assert wrong.why_untimed(SPLIT, case) == "failed on this workload: off by one"
    assert verdicts().why_untimed(SPLIT, case, verified=False) == ""


def test_ledgers_give_the_verdict_on_each_case(tmp_path):
    case = split_case()
    ledger = Ledger(tmp_path / "ledger.jsonl", SPLIT, "mine")
    ledger.announce(Sourced(case, "boundary"))
    ledger.settle(case, Explained((failure(),), ()))
    ledger.close()
    found = read_ledgers([tmp_path / "ledger.jsonl"])[case.id]
    assert found.failures == [("equality", "num_decodes", "off by one")]


def test_a_case_that_is_judged_twice_keeps_its_failures(tmp_path):
    ledger = tmp_path / "ledger.jsonl"
    known = '"known":[["E20","equality","out","lost field"]]'
    ledger.write_text(
        f'{{"event":"verdict","id":"1","failures":[["purity","x","modified"]],{known}}}\n'
        f'{{"event":"verdict","id":"1","failures":[],{known}}}\n'
        '{"event":"verdict","id":"1","failures":[]}\n'
    )
    found = read_ledgers([ledger])["1"]
    assert found.failures == [("purity", "x", "modified")]
    assert found.known == [("E20", "equality", "out", "lost field")]


def steps_of(candidate, times):
    steps = [
        Step(source=f"step {n}", case_id=f"{n}", requests=1, tokens=1, ns=[ns])
        for n, ns in enumerate(times)
    ]
    return Steps(trace="t", candidate=candidate, operations=(SPLIT,), steps=steps)


def test_steps_are_compared_one_by_one():
    (found,) = comparisons([steps_of("mine", [10, 10]), steps_of("peer", [80, 5])], ["peer"])
    assert found.geometric_mean == pytest.approx(2.0)
    assert (found.worst, found.worst_source) == (0.5, "step 1")
    assert found.low == pytest.approx(0.5)
    assert found.high == pytest.approx(8.0)


def test_engine_step_has_the_operations_of_all_candidates_and_names_the_others():
    steps = list(timed_steps(list(ALL.values()), trace_steps(None, 3)))
    judged = {one.case.id: CaseVerdict(one.case.id) for step in steps for one in step.cases}

    def verdicts(missing=()):
        names = {
            name: result(name, "NOT OFFERED" if name in missing else "PASS")
            for name in STEP_OPERATIONS
        }
        return CandidateVerdicts("cpu", names, judged)

    candidates = [Candidate("mine", "mine"), Candidate("peer", "peer")]
    by_candidate = {"mine": verdicts(), "peer": verdicts({REORDER, "build_slot_mapping"})}
    made, to_time, untimed = entries(steps, candidates, by_candidate)
    assert untimed == []
    assert [of.candidate for of in made] == ["mine", "peer"]
    assert made[0].left_out == {
        REORDER: "peer: not offered",
        "build_slot_mapping": "peer: not offered",
    }
    assert set(made[0].operations) == {*STEP_OPERATIONS} - {REORDER, "build_slot_mapping"}
    assert {op.name for entry in to_time for op, _ in entry.cases} == set(made[0].operations)


def test_trace_without_two_common_operations_has_no_steps_and_a_reason():
    trace = trace_steps(None, 3)
    steps = list(timed_steps([ALL[REORDER], ALL[SPLIT]], trace))
    judged = {one.case.id: CaseVerdict(one.case.id) for step in steps for one in step.cases}
    sound = {name: result(name, "PASS") for name in (REORDER, SPLIT)}
    lacking = sound | {REORDER: result(REORDER, "NOT OFFERED")}
    by_candidate = {
        "mine": CandidateVerdicts("cpu", sound, judged),
        "peer": CandidateVerdicts("cpu", lacking, judged),
    }
    candidates = [Candidate("mine", "mine"), Candidate("peer", "peer")]
    made, to_time, untimed = entries(steps, candidates, by_candidate)
    assert made == to_time == []
    why = "fewer than 2 of its operations can be timed: peer: not offered"
    assert [(one.operation, one.candidate, one.workload, one.reason) for one in untimed] == [
        ("whole step", name, trace.name, why) for name in ("mine", "peer")
    ]
    one_alone = list(timed_steps([ALL[SPLIT]], trace))
    assert entries(one_alone, candidates, by_candidate) == ([], [], [])
