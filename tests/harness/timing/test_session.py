"""A candidate that dies or raises while it is timed has no time; the others have."""

from __future__ import annotations

import itertools
from dataclasses import replace
from statistics import median

import pytest
import torch

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.steps.workloads import synthetic_batches, timed_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.timing import Workload
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.timing.plan.entries import Entry, FailureKind, StepEntry
from attnproof.harness.timing.plan.timetable import SERVED, timed_cases, why_never
from attnproof.harness.timing.process.binding import is_single_use
from attnproof.harness.timing.process.comparison import (
    CandidateCalls,
    TimedCall,
    expected_outputs,
)
from attnproof.harness.timing.process.paired import Budget
from attnproof.harness.timing.process.remembering import remembering
from attnproof.harness.timing.session import TimingProcess

pytestmark = pytest.mark.slow

SPLIT, REORDER = "split_decodes_and_prefills", "reorder_batch_to_split_decodes_and_prefills"
QUICK = Budget(seconds=0.02, least_rounds=4, most_rounds=6)
WORKLOAD = timed_batch("mixed, 3 requests", "mixed", make_batch([1, 1, 5], [9, 20, 3], 16))
SOUND = f"from attnproof.reference import {SPLIT}\n"
DIES = f"""
import os, signal
from attnproof.reference import {SPLIT} as right
calls = []
def {SPLIT}(*args, **kwargs):
    calls.append(0)
    if len(calls) > 12:
        os.kill(os.getpid(), signal.SIGSEGV)
    return right(*args, **kwargs)
"""
RAISES = f"""
def {SPLIT}(*args, **kwargs):
    raise IndexError("row 7")
"""
RAISES_LATER = f"""
from attnproof.reference import {SPLIT} as right
calls = []
def {SPLIT}(*args, **kwargs):
    calls.append(0)
    if len(calls) > 8:
        raise IndexError("row 7")
    return right(*args, **kwargs)
"""
CLOSES = f"""
import os, time
def {SPLIT}(*args, **kwargs):
    os.closerange(3, 1000)
    time.sleep(60)
"""


WRITE_ONLY = ("CommonAttentionState",)
"""Operations that return an object, and whose outputs are what they write."""
SLICE, ATTENTION = "slice_query_start_locs", "decode_attention"
RIGHT = f"from attnproof.reference import {SLICE}\n"
WRONG_WHEN_TIMED = f"""
import gc
from attnproof.reference import {SLICE} as right
def {SLICE}(query_start_loc, request_slice):
    return right(query_start_loc, request_slice) if gc.isenabled() else None
"""
SELDOM_WRONG_WHEN_TIMED = f"""
import gc
from attnproof.reference import {SLICE} as right
calls = []
def {SLICE}(query_start_loc, request_slice):
    calls.append(0)
    made = right(query_start_loc, request_slice)
    return made + 1 if len(calls) % 5 == 0 and not gc.isenabled() else made
"""
REMEMBERS = f"""
from attnproof.reference import {SLICE} as right
known = {{}}
def {SLICE}(query_start_loc, request_slice):
    key = (KEY)
    found = known.get(key)
    if found is not None and found[0] is query_start_loc:
        return found[1]
    sum(range(5000))
    known[key] = query_start_loc, right(query_start_loc, request_slice)
    return known[key][1]
"""
LATEST_ONLY = """
class LatestOnly(dict):
    def __setitem__(self, key, value):
        self.clear()
        super().__setitem__(key, value)
"""
SLOW = f"""
from attnproof.reference import {SLICE} as right
def {SLICE}(query_start_loc, request_slice):
    sum(range(5000))
    return right(query_start_loc, request_slice)
"""
WRITES_TO_THE_PIPE = f"""
import os, stat, struct, time
def {SLICE}(query_start_loc, request_slice):
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, struct.pack("!i", 3) + b"abc")
        except OSError:
            pass
    time.sleep(60)
"""


@pytest.fixture
def candidates(tmp_path):
    """Make candidates of sources, by name."""

    def make(**sources):
        made = []
        for name, source in sources.items():
            path = tmp_path / f"{name}.py"
            path.write_text(source, encoding="utf-8")
            made.append(Candidate(name, str(path)))
        return made

    return make


def entry(names, operation=SPLIT, workload=WORKLOAD):
    (timed,) = timed_cases([ALL[operation]], [workload])[:1]
    return Entry(timed.operation, timed.workload, timed.case, tuple(names))


def measured(candidates, *entries):
    with TimingProcess(candidates, entries) as process:
        return [process.measure(place, QUICK) for place in range(len(entries))]


def failures_of(found):
    return {name: failure.text for name, failure in found.failures.items()}


def test_all_candidates_are_timed_in_equally_many_rounds(candidates):
    (found,) = measured(candidates(one=SOUND, other=SOUND), entry(["one", "other"]))
    assert [sample.name for sample in found.samples] == ["one", "other"]
    rounds = {len(sample.host_ns) for sample in found.samples}
    assert len(rounds) == 1
    assert rounds.pop() >= QUICK.least_rounds
    assert all(ns > 0 for sample in found.samples for ns in sample.host_ns)
    assert found.failures == {}
    assert found.samples[0].costs == found.samples[1].costs
    assert found.control_ns > 0


def test_candidate_that_kills_the_process_has_no_time_and_others_have(candidates):
    made = candidates(dying=DIES, sound=SOUND)
    names = ["dying", "sound"]
    first, second = measured(made, entry(names), entry(["sound"]))
    assert [sample.name for sample in first.samples] == ["sound"]
    assert failures_of(first) == {"dying": "crashed with SIGSEGV while it was timed"}
    assert [sample.name for sample in second.samples] == ["sound"]


def test_candidate_that_kills_the_process_repeatedly_is_given_up(candidates):
    made = candidates(dying=DIES, sound=SOUND)
    found = measured(made, *[entry(["dying", "sound"])] * 4, entry(["dying"]))
    assert [one.failures["dying"].text for one in found] == [
        *["crashed with SIGSEGV while it was timed"] * 3,
        *["crashed or hung 3 times while it was timed, and is given up"] * 2,
    ]
    assert [len(one.samples) for one in found] == [1, 1, 1, 1, 0]


def test_candidates_timed_alone_share_no_rounds(candidates):
    made = candidates(dying=DIES, one=SOUND, other=SOUND)
    [alone] = measured(made, entry(["dying", "one", "other"]))
    [together] = measured(made, entry(["one", "other"]))
    assert (alone.together, together.together) == (False, True)


def test_candidates_are_timed_alone_if_one_raises_in_a_later_call(candidates):
    made = candidates(raising=RAISES_LATER, sound=SOUND)
    (found,) = measured(made, entry(["raising", "sound"]))
    assert [sample.name for sample in found.samples] == ["sound"]
    assert failures_of(found) == {"raising": "raised IndexError while it was timed: row 7"}
    assert not found.together


def test_process_that_closes_the_pipe_is_ended(candidates, monkeypatch):
    monkeypatch.setattr("attnproof.harness.running.processes.child._CLOSING_S", 0.1)
    (found,) = measured(candidates(closing=CLOSES, sound=SOUND), entry(["closing", "sound"]))
    assert [sample.name for sample in found.samples] == ["sound"]
    assert failures_of(found) == {
        "closing": "closed the channel to the harness and went on while it was timed"
    }


def test_candidate_that_raises_has_no_time_and_the_reason_names_the_error(candidates):
    (found,) = measured(candidates(raising=RAISES, sound=SOUND), entry(["raising", "sound"]))
    assert [sample.name for sample in found.samples] == ["sound"]
    assert failures_of(found) == {"raising": "raised IndexError while it was timed: row 7"}


def test_a_candidate_that_cannot_be_imported_ends_the_timing_in_one_line(candidates):
    made = candidates(sound=SOUND, broken="import nowhere_at_all\n")
    with pytest.raises(InfrastructureError, match=r"candidate broken cannot be imported.*nowhere"):
        measured(made, entry(["sound"]))


def test_candidate_that_returns_nothing_when_it_is_timed_has_no_time(candidates):
    made = candidates(cheating=WRONG_WHEN_TIMED, sound=RIGHT)
    (found,) = measured(made, entry(["cheating", "sound"], SLICE))
    assert [sample.name for sample in found.samples] == ["sound"]
    wrong = found.failures["cheating"]
    assert wrong.kind is FailureKind.WRONG
    assert wrong.operation == SLICE
    assert wrong.text == (
        "returned another result while it was timed: result is None, "
        "expected [0 1 6] (int32 [3] cpu)"
    )
    assert found.together


def test_candidate_that_is_seldom_wrong_when_it_is_timed_has_no_time(candidates):
    made = candidates(cheating=SELDOM_WRONG_WHEN_TIMED)
    long = Budget(seconds=1, least_rounds=100, most_rounds=400)
    with TimingProcess(made, [entry(["cheating"], SLICE)]) as process:
        found = process.measure(0, long)
    assert found.samples == []
    assert failures_of(found)["cheating"].startswith(
        "returned another result while it was timed: result[0] is 1, expected 0"
    )


@pytest.mark.parametrize(
    "key",
    [
        "id(query_start_loc), query_start_loc._version",
        "query_start_loc.data_ptr(), query_start_loc.shape",
    ],
)
def test_answers_remembered_for_an_object_save_no_time(candidates, key):
    made = candidates(remembering=REMEMBERS.replace("KEY", key), slow=SLOW)
    roomy = Budget(seconds=0.5, least_rounds=5, most_rounds=40)
    with TimingProcess(made, [entry(["remembering", "slow"], SLICE)]) as process:
        found = process.measure(0, roomy)
    times = {sample.name: median(sample.host_ns) for sample in found.samples}
    assert times["slow"] / times["remembering"] < 3  # 50 if the same inputs were timed again


@pytest.mark.parametrize("store", ["known = {}", "known = LatestOnly()"])
def test_answers_remembered_for_the_bytes_of_an_input_are_no_times(candidates, store):
    remembering = REMEMBERS.replace("KEY", "query_start_loc.numpy().tobytes()")
    remembering = remembering.replace("found[0] is query_start_loc", "True")
    remembering = remembering.replace("known = {}", LATEST_ONLY + store)
    made = candidates(remembering=remembering, slow=SLOW)
    lengths = [1, 1, *range(100, 110)]
    batch = make_batch(lengths, [40] * len(lengths), 16)
    timed = timed_batch("mixed, 12 requests", "mixed", batch)
    with TimingProcess(made, [entry(["remembering", "slow"], SLICE, timed)]) as process:
        found = process.measure(0, QUICK)
    assert [sample.name for sample in found.samples] == ["slow"]
    failure = found.failures["remembering"]
    assert (failure.kind, failure.operation) == (FailureKind.REMEMBERED, SLICE)
    assert failure.text.startswith("answers repeated inputs from memory: three in four calls take ")


def test_memory_is_sought_once_and_not_in_the_reference(candidates, monkeypatch):
    name = "attnproof.harness.timing.process.contest.remembering"
    monkeypatch.setattr(name, lambda *_, **__: "answers from memory")
    made = [Candidate("reference", "attnproof.reference"), *candidates(sound=RIGHT)]
    with TimingProcess(made, [entry(["reference", "sound"], SLICE)]) as process:
        found = process.measure(0, QUICK)
        again = process.measure(0, QUICK, ["sound"], itself=True)
    assert [sample.name for sample in found.samples] == ["reference"]
    assert failures_of(found) == {"sound": "answers from memory"}
    assert [sample.name for sample in again.samples] == ["sound", "sound"]


@pytest.mark.parametrize(("single_use", "makes"), [(False, 4), (True, 14)])
def test_calls_on_known_values_share_their_inputs(single_use, makes):
    made = []

    def make():
        made.append(0)
        return TimedCall(lambda: None)

    assert not remembering("a", [make] * 9, "cpu", single_use=single_use)
    assert len(made) == 8 * makes


def test_known_deviation_is_no_wrong_result_unless_it_changes(candidates):
    deviating = f"import gc\nfrom attnproof.reference import {SLICE} as right\n"
    deviating += f"def {SLICE}(*given):\n    return right(*given) + 1\n"
    cheating = deviating.replace("+ 1", "+ 1 + (not gc.isenabled())")
    one = entry(["deviating", "cheating"], SLICE)
    known = frozenset((name, one.case.id) for name in one.names)
    one = replace(one, deviating=known)
    (found,) = measured(candidates(deviating=deviating, cheating=cheating), one)
    assert [sample.name for sample in found.samples] == ["deviating"]
    assert found.failures["cheating"].kind is FailureKind.WRONG


def test_engine_step_with_a_wrong_result_names_the_operation(candidates):
    parts = [entry([], operation) for operation in (REORDER, SLICE)]
    cases = tuple((part.operation, part.case) for part in parts)
    step = StepEntry("a trace", WORKLOAD.workload, cases, ("cheating", "sound"))
    reorder = f"from attnproof.reference import {REORDER}\n"
    made = candidates(cheating=reorder + WRONG_WHEN_TIMED, sound=reorder + RIGHT)
    (found,) = measured(made, step)
    assert [sample.name for sample in found.samples] == ["sound"]
    assert found.failures["cheating"].operation == SLICE


def test_every_operation_that_is_timed_has_outputs_to_compare():
    from attnproof import reference
    from attnproof.harness.running.loading import offered_by

    timed = [one for one in ALL.values() if not why_never(one)]
    cases = {one.operation.name: one for one in timed_cases(timed, synthetic_batches(0))}
    assert cases.keys() == {one.name for one in timed}
    for name, one in cases.items():
        if one.operation.built_in.package:
            continue  # may be absent
        expected = expected_outputs(one.operation, one.case, "cpu")
        offered = offered_by(reference, one.operation)
        calls = CandidateCalls(one.operation, one.case, offered, "cpu", expected)
        made = calls.make()
        assert expected, name
        result = made.run()
        assert made.mismatch(result) is None, name
        # What only writes its arguments returns None: another result says nothing.
        assert made.mismatch(object()) is not None or result is None or name in WRITE_ONLY, name


def test_a_served_case_is_laid_out_once_and_copied(candidates):
    """Its results are compared all the same: the run has not verified it."""
    right = f"from attnproof.reference import {ATTENTION}\n"
    wrong = f"def {ATTENTION}(*args, out, **more):\n    out.fill_(1)\n"
    name, case = next(iter(ALL[ATTENTION].bench.models()))
    workload = Workload(name=name, kind=SERVED, requests=4, tokens=4)
    served = Entry(ALL[ATTENTION], workload, case, ("right", "wrong"))
    (found,) = measured(candidates(right=right, wrong=wrong), served)
    assert [sample.name for sample in found.samples] == ["right"]
    assert found.failures["wrong"].kind is FailureKind.WRONG
    assert found.work.flops


def test_copies_of_a_call_share_no_memory():
    _, case = next(iter(ALL[ATTENTION].bench.models()))
    operation = ALL[ATTENTION]
    template = operation.call.prepare(case, 0, "cpu")
    expected = expected_outputs(operation, case, "cpu", template)
    calls = CandidateCalls(operation, case, reference.decode_attention, "cpu", expected, template)
    before = template["out"].clone().view(torch.int16)
    timed = [calls.make() for _ in range(2)]
    assert [call.mismatch(call.run()) for call in timed] == [None, None]
    assert "expected" in calls.make().mismatch(None).text  # nothing was written to this copy
    assert torch.equal(template["out"].view(torch.int16), before)


def test_process_that_gets_no_reply_of_the_harness_is_ended(candidates):
    made = candidates(writing=WRITES_TO_THE_PIPE, sound=RIGHT)
    (found,) = measured(made, entry(["writing", "sound"], SLICE))
    assert [sample.name for sample in found.samples] == ["sound"]
    assert failures_of(found) == {
        "writing": "wrote to the channel of the harness while it was timed"
    }


def test_timing_against_itself_gives_two_samples_of_one_candidate(candidates):
    with TimingProcess(candidates(sound=SOUND), [entry(["sound"])]) as process:
        one, other = process.measure(0, QUICK, itself=True).samples
    assert (one.name, other.name) == ("sound", "sound")
    assert len(one.host_ns) == len(other.host_ns)


def test_engine_step_times_all_its_operations(candidates):
    parts = [entry([], operation) for operation in (REORDER, SPLIT)]
    cases = tuple((part.operation, part.case) for part in parts)
    step = StepEntry("a trace", WORKLOAD.workload, cases, ("sound",))
    source = f"from attnproof.reference import {SPLIT}, {REORDER}\n"
    alone = [entry(["sound"], SPLIT), step]
    one, whole = measured(candidates(sound=source), *alone)
    assert min(whole.samples[0].host_ns) > 0
    assert whole.samples[0].costs is None
    assert one.samples[0].costs is not None


def test_reordering_is_single_use_and_splitting_is_not():
    from attnproof import reference

    for name, spent in ((REORDER, True), (SPLIT, False)):
        case = entry([], name).case
        call = ALL[name].call.prepare(case, 0, "cpu")
        assert is_single_use(ALL[name], getattr(reference, name), call) is spent


def test_class_with_a_clocked_part_is_not_single_use():
    from attnproof import reference

    name = "CommonMetadataBuilder"
    case = entry([], name).case
    calls = itertools.repeat(ALL[name].call.prepare(case, 0, "cpu"), 1)
    assert not is_single_use(ALL[name], reference.CommonMetadataBuilder, next(calls))
