"""What the recorder writes of an engine's steps, and what it never does to the engine."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import weakref
from importlib.metadata import EntryPoint
from pathlib import Path

import msgspec
import pytest
import torch
import zstandard

from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files
from attnproof.harness.operations import ALL
from attnproof.harness.recorder import plugin, writing
from attnproof.harness.recorder.copying import Copies
from attnproof.harness.recorder.header import header_of
from attnproof.harness.recorder.queue import BoundedQueue
from attnproof.harness.recorder.recorder import Recorder
from attnproof.harness.recorder.requests import RequestNumbers, Requests
from attnproof.harness.recorder.schema import PREFIX, Step
from attnproof.harness.recorder.settings import FOLDER, LIMIT, PLUGIN, SAMPLE, Settings, settings_of
from attnproof.harness.running.recordings import read_recordings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SLOTS, SPLIT = "build_slot_mapping", "split_decodes_and_prefills"


def read(folder):
    """Return the steps of the one file of a folder, and the remarks on it."""
    [path] = recording_files(folder)
    remarks = []
    return list(recorded_steps(path, remarks)), remarks


def verdicts(folder):
    _, outcomes, _ = read_recordings([folder], 10, 1, list(ALL.values()))
    return {
        outcome.result.name: (outcome.result.verdict, outcome.result.cases) for outcome in outcomes
    }


def values(step, field, build=0):
    return step.builds[build].cam[field]["v"].tolist()


def test_steps_are_recorded_as_they_were_though_buffers_are_filled_anew(record):
    done = record(6)
    assert verdicts(done.folder) == {SLOTS: ("PASS", 6), SPLIT: ("PASS", 6)}
    steps, remarks = read(done.folder)
    assert [values(step, "query_start_loc") for step in steps[:2]] == [[0, 1, 3, 6], [0, 2, 5, 6]]
    assert [step.step for step in steps] == [1, 2, 3, 4, 5, 6]
    assert remarks == ["fields that were not recorded: input_ids"]


def test_a_wrong_slot_of_the_engine_is_found_in_its_step(record):
    def prepare(runner, _):
        fill = runner.metadata

        def wrong(tokens):
            made = fill(tokens)
            made[0].slot_mapping[0] += int(runner.computed[0] == 1)  # the second step
            return made

        runner.metadata = wrong

    done = record(4, prepare=prepare)
    [name] = [path.name for path in recording_files(done.folder)]
    _, outcomes, _ = read_recordings([done.folder], 10, 1, list(ALL.values()))
    [finding] = [one for outcome in outcomes for one in outcome.findings]
    assert (finding.operation, finding.failed_cases) == (SLOTS, 1)
    assert finding.source == f"{name}#3,group=0"  # the header is the first frame


def test_an_update_of_the_block_table_is_a_build_of_its_own(record):
    done = record(3, groups=2)
    steps, _ = read(done.folder)
    assert [len(step.builds) for step in steps] == [2, 2, 2]
    assert values(steps[0], "block_table_tensor", 1)[0][0] == 1001
    assert verdicts(done.folder)[SLOTS] == ("PASS", 6)


def test_the_table_is_copied_as_far_as_it_is_used(record):
    done = record(1)
    steps, _ = read(done.folder)
    assert len(values(steps[0], "block_table_tensor")[0]) == 1 + 8
    assert done.runner.tables[0].shape[1] == 64


def test_dummy_runs_are_left_out(record):
    def prepare(runner, _):
        runner._dummy_run(5)
        runner.groups[0].build_metadata_for_cudagraph_capture(runner.metadata([4, 4, 4])[0])
        runner.groups[0].build_metadata(runner.metadata([4, 4, 4])[0])

    steps, _ = read(record(2, prepare=prepare).folder)
    assert [step.step for step in steps] == [1, 2]
    assert values(steps[0], "query_start_loc") == [0, 1, 3, 6]


def test_a_capture_within_a_step_is_left_out(record):
    def prepare(runner, _):
        step = runner.run

        def run(output):
            runner.groups[0].build_metadata_for_cudagraph_capture(runner.metadata([4, 4, 4])[0])
            return step(output)

        runner.run = run

    steps, _ = read(record(2, prepare=prepare).folder)
    assert [len(step.builds) for step in steps] == [1, 1]


def test_drafting_is_marked_and_not_compared(record):
    done = record(3, drafting=True)
    steps, remarks = read(done.folder)
    assert [len(step.builds) for step in steps] == [1, 1, 1]
    assert "3 builds for drafting not compared" in remarks
    assert verdicts(done.folder) == {SLOTS: ("PASS", 3), SPLIT: ("PASS", 3)}


def test_drafting_after_the_step_is_a_frame_without_builds_to_compare(record):
    def prepare(runner, _):
        run = runner.execute_model

        def execute_model(output):
            run(output)
            runner.groups[0].build_metadata_for_drafting(runner.metadata([1, 1, 1])[0], 0)

        runner.execute_model = execute_model

    steps, remarks = read(record(2, prepare=prepare).folder)
    assert [(step.step, len(step.builds)) for step in steps] == [(1, 1), (1, 0), (2, 1), (2, 0)]
    assert "2 builds for drafting not compared" in remarks


@pytest.mark.parametrize(
    ("options", "kept"), [({"sample": 3}, [1, 4, 7]), ({"limit": 2}, [1, 2]), ({}, [*range(1, 8)])]
)
def test_sample_and_limit(record, options, kept):
    done = record(7, **options)
    assert [step.step for step in read(done.folder)[0]] == kept
    assert done.recorder.active is False


def test_no_token_no_text_and_no_name_is_in_a_file(record):
    done = record(3)
    [path] = recording_files(done.folder)
    content = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    assert b"FakeForCausalLM" in content  # so that the words below would be found
    for words in (b"secret", str(done.folder).encode(), b"prompt_token_ids"):
        assert words not in content
    for token in (777_777, 888_888, 999_999):
        for order in ("little", "big"):
            assert token.to_bytes(4, order) not in content


def test_requests_are_numbers_and_ended_ones_are_forgotten():
    numbers, step, requests = RequestNumbers(), Step(1, [], []), Requests()
    requests.rows, requests.scheduled = ["b", "a"], {"a": 3, "b": 1}
    requests.finished = ["z"]
    numbers.describe(step, requests)
    assert (step.rows, step.scheduled, step.finished) == ([0, 1], [(1, 3), (0, 1)], [2])
    assert numbers.of(["z", "a"]) == [3, 1]


def test_requests_that_end_between_recorded_steps_are_in_the_next(record):
    def prepare(runner, _):
        schedule = runner.scheduled
        runner.scheduled = lambda step: dataclasses.replace(
            schedule(step), finished_req_ids={f"ended-{step}"}
        )

    done = record(5, sample=3, prepare=prepare)
    [path] = recording_files(done.folder)
    frames = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    finished = []
    while frames:
        length, _ = PREFIX.unpack_from(frames)
        frame = msgspec.msgpack.decode(frames[8 : 8 + length])
        finished += [len(frame["finished"])] if frame["type"] == "step" else []
        frames = frames[8 + length :]
    assert finished == [1, 3]


@pytest.mark.parametrize("owner", [Copies, writing.Writer])
def test_an_error_of_the_recorder_stays_in_it(record, monkeypatch, capfd, owner):
    def fails(*_):
        raise RuntimeError("planted\nsecond line")

    monkeypatch.setattr(owner, "take" if owner is Copies else "_compress", fails)
    done = record(5)
    assert int(done.runner.computed.sum()) > 0
    assert done.recorder.active is False
    assert capfd.readouterr().err == (
        "attnproof record: stopped, the engine goes on: RuntimeError: planted\n"
    )


def test_an_error_of_the_engine_is_the_engines(record):
    def prepare(runner, _):
        def fails(tokens):
            raise KeyError("of the engine")

        runner.metadata = fails

    with pytest.raises(KeyError, match="of the engine"):
        record(1, prepare=prepare)


def test_an_engine_with_other_names_runs_without_the_recorder(engine, tmp_path, capfd):
    runner = engine()
    del type(runner)._dummy_run
    recorder = Recorder(Settings(tmp_path / "recording"))
    from attnproof.harness.recorder.vllm import hook_engine

    hook_engine(recorder)
    runner.execute_model(runner.scheduled())
    assert recorder.active is False
    assert "stopped, the engine goes on: AttributeError" in capfd.readouterr().err


def test_a_full_queue_drops_and_counts():
    queue = BoundedQueue(10)
    for item in ("a", "b", "c"):
        queue.offer(item, 5)
    assert (queue.dropped, queue.take(), queue.take(), queue.take()) == (1, "a", "b", None)
    queue.offer("d", 10)
    assert (queue.dropped, queue.take()) == (1, "d")


def test_steps_that_were_dropped_are_counted_in_the_file(record, monkeypatch):
    monkeypatch.setattr(writing, "_MOST_PENDING", 10_000)
    monkeypatch.setattr(writing, "_POLL_S", 60.0)
    running = threading.active_count()
    steps, remarks = read(record(6).folder)
    assert threading.active_count() == running  # the thread has ended
    assert 0 < len(steps) < 6
    assert f"{6 - len(steps)} steps dropped while recording: the queue was full" in remarks


def test_two_recorders_in_one_folder_have_a_file_each(record):
    done = record(3)
    header = header_of(done.runner, 1)
    other = writing.Writer(done.folder, header, pytest.fail)  # as in a container: the same number
    other.put(lambda: Step(1, [], []), 0)
    other.close("exit")
    files = recording_files(done.folder)
    assert len(files) == 2
    assert sorted(len(list(recorded_steps(path, []))) for path in files) == [1, 3]


def test_memory_that_is_filled_anew_within_a_step_is_copied_again():
    copies, tensor = Copies(), torch.zeros(3, dtype=torch.int32)
    assert (copies.take(tensor), copies.take(tensor[:])) == (0, 0)
    tensor.fill_(7)
    assert copies.take(tensor) == 1
    assert [one.data for one in copies.tensors()] == [bytes(12), b"\7\0\0\0" * 3]


def test_a_copy_keeps_values_and_tells_the_strides():
    copies = Copies()
    copies.take(torch.arange(12, dtype=torch.int64).view(3, 4)[:, ::2])
    [one] = copies.tensors()
    assert (one.shape, one.strides, one.dtype) == ([3, 2], [4, 2], "int64")
    assert list(memoryview(one.data).cast("q")) == [0, 2, 4, 6, 8, 10]


def test_the_recorder_keeps_no_metadata_of_the_engine(record):
    kept = []

    def prepare(runner, _):
        fill = runner.metadata

        def metadata(tokens):
            made = fill(tokens)
            kept.append(weakref.ref(made[0]))
            return made

        runner.metadata = metadata
        runner.execute_model(runner.scheduled())
        gc.collect()  # while the recorder still records
        assert [one() for one in kept] == [None]

    record(0, prepare=prepare)


def test_the_plugin_is_an_entry_point_of_vllm():
    project = tomllib.loads(Path(__file__).parents[3].joinpath("pyproject.toml").read_text("utf-8"))
    group = "vllm.general_plugins"
    [(name, value)] = project["project"]["entry-points"][group].items()
    assert name == PLUGIN
    assert EntryPoint(name, value, group).load() is plugin.arm


def test_settings_reach_a_process_as_variables():
    settings = Settings(Path("/a/folder"), sample=3, limit=9)
    assert settings_of(settings.environment()) == settings
    assert settings_of({}) is None
    assert settings_of({FOLDER: ""}) is None
    for name in (SAMPLE, LIMIT):
        with pytest.raises(ValueError, match="-1"):
            settings_of({**settings.environment(), name: "-1"})
