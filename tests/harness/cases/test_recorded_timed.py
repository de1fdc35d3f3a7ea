"""Recorded batches as workloads of a benchmark: chosen evenly, with their places."""

from __future__ import annotations

import json
from itertools import pairwise

import msgspec
import pytest

from attnproof.harness.cases.batches.consistency import batch_problem
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.cases.recorded.steps import RecordingError
from attnproof.harness.cases.recorded.timed import recorded_batches
from attnproof.harness.operations import ALL
from attnproof.harness.running.candidates import resolve
from attnproof.harness.running.errors import UsageError
from attnproof.harness.timing.plan.timetable import decodes_first, timed_cases, timed_steps
from attnproof.harness.verbs.benchmark import prepare
from attnproof.harness.verbs.checks import check_timing
from attnproof.harness.verbs.options import TimingOptions

SLOTS = "build_slot_mapping"


def tensor(values, dtype="int32"):
    return {"t": dtype, "v": values}


def candidate():
    return resolve(["optimized"], "cpu")[0]


def build(length, spec="FullAttentionSpec", **cam):
    """Return a build of one prefill of a length."""
    fields = {
        "query_start_loc": tensor([0, length]),
        "query_start_loc_cpu": tensor([0, length]),
        "seq_lens": tensor([length]),
        "num_reqs": 1,
        "num_actual_tokens": length,
        "max_query_len": length,
        "max_seq_len": length,
        "block_table_tensor": tensor([list(range(1, 40))]),
        "slot_mapping": tensor(list(range(4, 4 + length)), "int64"),
        "causal": True,
    }
    return {"block_size": 4, "spec": spec, "cam": fields | cam}


@pytest.fixture
def file(tmp_path):
    def write(*builds, name="run.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"builds": [one]}) + "\n" for one in builds))
        return path

    return write


@pytest.mark.parametrize(("steps", "count", "kept"), [(3, 24, 3), (60, 5, 5), (200, 3, 3)])
def test_batches_are_evenly_spaced_over_the_file(file, steps, count, kept):
    found = recorded_batches(file(*[build(1 + n % 100) for n in range(steps)]), count)
    places = [int(one.workload.name.partition("#")[2].partition(",")[0]) for one in found.steps]
    assert (found.name, len(places)) == ("run.jsonl", kept)
    assert places[0] == 1
    assert places[-1] > steps * 3 // 4
    gaps = [after - before for before, after in pairwise(places)]
    assert max(gaps) <= 2 * min(gaps)


def test_batches_without_slots_or_of_contradictions_are_left_out(file):
    bad = build(7, seq_lens=tensor([2]))
    found = recorded_batches(file(build(5), build(6, "MambaSpec"), bad, build(8)), 10)
    assert [one.batch.query_lens for one in found.steps] == [(5,), (8,)]
    assert {one.workload.kind for one in found.steps} == {"recorded"}


def test_a_file_without_a_batch_to_time_is_one_line(file):
    with pytest.raises(RecordingError, match=r"^run.jsonl: no batch that can be timed$"):
        recorded_batches(file(build(6, "MambaSpec")), 10)


def test_timed_cases_are_verified_as_recorded_batches(file):
    found = recorded_batches(file(build(5), build(9)), 10)
    [own] = timed_cases([ALL[SLOTS]], found.steps[:1])
    [first, _] = timed_steps([ALL[SLOTS]], found)
    assert (own.sourced.origin, own.sourced.source) == ("recorded", "timed: run.jsonl#1,group=0")
    assert [one.sourced.origin for one in first.cases] == ["recorded"]


def test_rows_move_with_their_prompts_and_sampled_tokens():
    batch = make_batch([3, 1, 2, 1], [0, 4, 5, 6], 4, logits_indices=(2, 3, 4, 5, 6))
    batch = msgspec.structs.replace(batch, prompt_lens=(9, 2, 8, 3), later=True)
    moved = decodes_first(batch)
    assert moved.query_lens == (1, 1, 3, 2)
    assert moved.prompt_lens == (2, 3, 9, 8)
    assert moved.logits_indices == (0, 1, 4, 5, 6)
    assert batch_problem(moved) == ""


def test_a_recording_takes_the_place_of_sampled_requests(file):
    options = TimingOptions(recorded=[file(build(5))], steps=2)
    benchmark = prepare(options, [ALL[SLOTS]], [candidate()])
    assert [step.trace for step in benchmark.steps] == ["run.jsonl"]
    assert {one.workload.kind for one in benchmark.timed} >= {"decode", "recorded"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "a.attnrec: empty"),
        (b"\x28\xb5\x2f\xfd not zstd", "a.attnrec, frame 1: damaged"),
        (None, "a.attnrec cannot be read: No such file or directory"),
    ],
)
def test_a_recording_that_cannot_be_read_is_one_line_of_usage(tmp_path, data, words):
    path = tmp_path / "a.attnrec"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        prepare(TimingOptions(recorded=[path]), [ALL[SLOTS]], [candidate()])
    assert str(caught.value).startswith("--recorded ")
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_no_steps_of_a_recording_is_a_contradiction(tmp_path):
    with pytest.raises(UsageError, match="--recorded with --steps 0"):
        check_timing(TimingOptions(recorded=[tmp_path], steps=0))
