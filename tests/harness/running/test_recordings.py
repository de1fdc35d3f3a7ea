"""Recordings of live engines: read, held against the reference, and taken as cases."""

from __future__ import annotations

import copy
import gzip
import json

import pytest

from attnproof.harness.operations import ALL
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.recordings import read_recordings
from attnproof.harness.verbs.progress import recording_progress
from tests.recordings import NAMES, recording

SLOTS, SPLIT = "build_slot_mapping", "split_decodes_and_prefills"
REORDER, LOCAL = (
    "reorder_batch_to_split_decodes_and_prefills",
    "make_local_attention_virtual_batches",
)


def tensor(values, dtype="int32"):
    return {"t": dtype, "v": values}


CAM = {
    "__class__": "CommonAttentionMetadata",
    "query_start_loc": tensor([0, 1, 5]),
    "query_start_loc_cpu": tensor([0, 1, 5]),
    "seq_lens": tensor([6, 4]),
    "num_reqs": 2,
    "num_actual_tokens": 5,
    "max_query_len": 4,
    "max_seq_len": 6,
    "block_table_tensor": tensor([[7, 3, 0], [5, 0, 9]]),
    "slot_mapping": tensor([13, 20, 21, 22, 23], "int64"),
    "causal": True,
    "positions": tensor([5, 0, 1, 2, 3], "int64"),
    "is_prefilling": tensor([False, True], "bool"),
    "seq_lens_cpu_upper_bound": tensor([6, 4]),
}
BUILD = {"block_size": 4, "spec": "FullAttentionSpec", "cam": CAM}
ROWS = {
    "req_ids": ["b", "a"],
    "num_scheduled": {"a": 1, "b": 4},
    "computed": [0, 5],
    "num_prompt": [9, 2],
}
CALLS = [
    {"f": SPLIT, "args": [CAM], "kwargs": {"decode_threshold": 1}, "result": [1, 1, 1, 4]},
    {
        "f": REORDER,
        "args": [ROWS, 1],
        "kwargs": {},
        "result": {"moved": True, "req_ids": ["a", "b"]},
    },
]
STEP = {"builds": [BUILD], "calls": CALLS, "step": 3}


@pytest.fixture
def read(tmp_path):
    """Read a recording of the given steps."""

    def run(*steps, count=10):
        path = tmp_path / "run.jsonl"
        path.write_text("".join(json.dumps(step) + "\n" for step in steps), encoding="utf-8")
        return read_recordings([path], count, 1, list(ALL.values()))

    return run


def changed(step, *place, to):
    """Return the step with another value at a place."""
    step = copy.deepcopy(step)
    at = step
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = to
    return step


def by_name(outcomes):
    return {outcome.result.name: outcome for outcome in outcomes}


@pytest.mark.parametrize("name", NAMES)
def test_each_recorded_build_and_call_agrees(name):
    path = recording(name.removesuffix(".jsonl.gz"))
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        steps = [json.loads(line) for line in lines]
    chosen, outcomes, [note] = read_recordings([path], 20, 1, list(ALL.values()))
    assert {outcome.result.verdict for outcome in outcomes} == {"PASS"}
    results = sum(outcome.result.cases for outcome in outcomes)
    assert results == sum(len(step["builds"]) + len(step["calls"]) for step in steps)
    assert f"{results} results compared" in note
    assert len(chosen) == 20
    assert {step.origin for step in chosen} == {"recorded"}


def test_a_recorded_step_becomes_a_batch(read):
    [step], outcomes, _ = read(STEP)
    batch = step.batch
    assert (batch.query_lens, batch.computed_lens, batch.blocks) == ((1, 4), (5, 0), ((7, 3), (5,)))
    assert (batch.later, batch.prompt_lens, batch.spare_columns) == (True, (5, 1), 1)
    assert step.source == "run.jsonl#1,group=0"
    assert {name: o.result.verdict for name, o in by_name(outcomes).items()} == dict.fromkeys(
        (SLOTS, SPLIT, REORDER), "PASS"
    )


@pytest.mark.parametrize(
    ("operation", "place", "value", "field", "diagnosis"),
    [
        (
            SLOTS,
            ("builds", 0, "cam", "slot_mapping", "v"),
            [14, 20, 21, 22, 23],
            "result[0]",
            "off by one token",
        ),
        (
            SLOTS,
            ("builds", 0, "cam", "slot_mapping", "v"),
            [21, 20, 21, 22, 23],
            "result[0]",
            "another request's block",
        ),
        (SPLIT, ("calls", 0, "result"), [2, 0, 5, 0], "result[0]", "off by one token"),
        (
            REORDER,
            ("calls", 1, "result"),
            {"moved": False, "req_ids": ["b", "a"]},
            "order",
            "order is wrong",
        ),
        (
            REORDER,
            ("calls", 1, "result"),
            {"moved": False, "req_ids": ["a", "b"]},
            "moved",
            "the opposite answer",
        ),
    ],
)
def test_a_wrong_result_of_the_engine_is_a_finding(read, operation, place, value, field, diagnosis):
    _, outcomes, _ = read(STEP, changed(STEP, *place, to=value))
    outcome = by_name(outcomes)[operation]
    [finding] = outcome.findings
    assert (outcome.result.verdict, outcome.result.cases, outcome.result.failed) == ("FAIL", 2, 1)
    assert (finding.field, finding.diagnosis, finding.origin) == (field, diagnosis, "recorded")
    assert finding.evidence["recorded"].shown == 1
    assert "--recorded" in finding.command
    assert finding.source.startswith("run.jsonl#2")


def test_a_group_without_slots_has_slots_of_0(read):
    encoder = changed(STEP, "builds", 0, "spec", to="EncoderOnlyAttentionSpec") | {"calls": []}
    zeros = changed(encoder, "builds", 0, "cam", "slot_mapping", "v", to=[0] * 5)
    [step], [outcome], _ = read(zeros)
    assert step.batch.no_slots
    assert outcome.result.verdict == "PASS"
    _, [outcome], _ = read(encoder)
    assert outcome.result.verdict == "FAIL"


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("builds", 0, "cam", "seq_lens", "v"), [6], "do not belong together"),
        (("builds", 0, "cam", "seq_lens", "v"), [6, 2], "contradict each other"),
        (("builds", 0, "cam", "seq_lens", "v"), [6, "x"], "no numbers of one shape"),
        (("builds", 0, "cam", "seq_lens", "v"), [6, 2**40], "does not hold"),
        (("builds", 0, "cam", "block_table_tensor"), None, "block_table_tensor is missing"),
        (("builds", 0, "cam", "block_table_tensor", "v"), [[7], [5]], "1 block-table columns"),
        (("builds", 0, "cam", "slot_mapping", "t"), "quad", "no tensor of a known dtype"),
    ],
)
def test_a_batch_that_cannot_be_read_is_unverified(read, place, value, words):
    _, outcomes, _ = read(changed(STEP, *place, to=value))
    result = by_name(outcomes)[SLOTS].result
    assert result.verdict == "UNVERIFIED"
    assert words in result.reason


def test_a_result_that_was_not_recorded_is_unverified(read):
    _, outcomes, _ = read(changed(STEP, "calls", 0, "result", to={"repr": "an object"}))
    result = by_name(outcomes)[SPLIT].result
    assert (result.verdict, result.cases) == ("UNVERIFIED", 0)
    assert "was not recorded" in result.reason


def test_a_field_that_is_not_compared_is_named(read):
    name = "make_kv_sharing_fast_prefill_common_attn_metadata"
    result = CAM | {"quota": 3, "_cache": None}
    _, outcomes, [note] = read(
        STEP | {"calls": [{"f": name, "args": [CAM], "kwargs": {}, "result": result}]}
    )
    assert by_name(outcomes)[name].result.verdict == "PASS"
    assert note.endswith("fields that the reference's results lack, not compared: quota")


def test_calls_of_no_operation_are_counted(read):
    unknown = {"f": "frobnicate", "args": [], "kwargs": {}, "result": None}
    _, _, [note] = read(STEP | {"calls": [unknown, *CALLS, unknown]})
    assert note.endswith("calls of no operation: 2 of frobnicate")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"{}\n", "line 1: not a recorded step"),
        (json.dumps(STEP).encode() + b"\n[1, 2]\n", "line 2: not a recorded step"),
        (b"\x1f\x8bgarbage", "cannot be read"),
        (gzip.compress(json.dumps(STEP).encode())[:-20], "cannot be read"),
        (b"\xff\xfe\n", "line 1: not a recorded step"),
    ],
    # A compressed file holds the time: as an id it would differ between the workers of a run.
    ids=["empty", "object", "list", "no gzip", "cut gzip", "no text"],
)
def test_a_damaged_file_is_one_line(tmp_path, content, words):
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_recordings([path], 10, 1, list(ALL.values()))
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_recordings([tmp_path / "none.jsonl"], 10, 1, list(ALL.values()))


def test_progress_counts_the_steps_of_each_file(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, steps in zip(paths, (2, 1), strict=True):
        path.write_text((json.dumps(STEP) + "\n") * steps, encoding="utf-8")
    seen = []
    read_recordings(paths, 4, 1, list(ALL.values()), lambda *one: seen.append(one))
    assert seen == [("a.jsonl", 0), ("a.jsonl", 1), ("a.jsonl", 2), ("b.jsonl", 0), ("b.jsonl", 1)]


def test_progress_is_a_line_for_each_file_without_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    with recording_progress() as progressed:
        for steps in range(3):
            progressed("run\x1b.jsonl", steps)
    assert capsys.readouterr().out == "comparing   run\\x1b.jsonl\n"


def test_progress_is_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    with recording_progress() as progressed:
        progressed("run.jsonl", 0)
    assert "comparing run.jsonl" in capsys.readouterr().err
