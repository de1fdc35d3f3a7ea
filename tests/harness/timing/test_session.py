"""A candidate that dies or raises while it is timed has no time; the others have."""

from __future__ import annotations

import itertools

import pytest

from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.steps.workloads import timed_batch
from attnproof.harness.model.candidate import Candidate
from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import InfrastructureError
from attnproof.harness.timing.plan.entries import Entry, StepEntry
from attnproof.harness.timing.plan.timetable import timed_cases
from attnproof.harness.timing.process.binding import is_single_use
from attnproof.harness.timing.process.paired import Budget
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


def entry(names, operation=SPLIT):
    (timed,) = timed_cases([ALL[operation]], [WORKLOAD])[:1]
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
    assert failures_of(found) == {"closing": "closed the channel to the harness and went on while it was timed"}


def test_candidate_that_raises_has_no_time_and_the_reason_names_the_error(candidates):
    (found,) = measured(candidates(raising=RAISES, sound=SOUND), entry(["raising", "sound"]))
    assert [sample.name for sample in found.samples] == ["sound"]
    assert failures_of(found) == {"raising": "raised IndexError while it was timed: row 7"}


def test_a_candidate_that_cannot_be_imported_ends_the_timing_in_one_line(candidates):
    made = candidates(sound=SOUND, broken="import nowhere_at_all\n")
    with pytest.raises(InfrastructureError, match=r"candidate broken cannot be imported.*nowhere"):
        measured(made, entry(["sound"]))


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
