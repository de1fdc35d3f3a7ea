"""Files of `attnproof record` that are whole, cut, damaged, later, mixed or empty."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import zstandard

from attnproof.harness.cases.recorded import stream
from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files
from attnproof.harness.cases.recorded.steps import RecordingError
from attnproof.harness.operations import ALL
from attnproof.harness.recorder.schema import (
    PREFIX,
    BuildFrame,
    End,
    Group,
    Header,
    SplitFrame,
    Step,
    Tensor,
    framed,
)
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.recordings import read_recordings

HEADER = Header(
    schema="attnproof.recording",
    version=1,
    recorder="0.1.0",
    engine="vllm",
    engine_version="0.32.0",
    runner="GPUModelRunner",
    model="LlamaForCausalLM",
    max_model_len=256,
    rank=0,
    world={"tensor": 2, "decode_context": 1},
    device="cpu",
    groups=[Group("FullAttentionSpec", 4)],
    sample=1,
)


def tensor(values, dtype="int32"):
    array = np.array(values, dtype=dtype)
    return Tensor(dtype, list(array.shape), [1] * array.ndim, array.tobytes())


TENSORS = [
    tensor([0, 1, 5]),
    tensor([6, 4]),
    tensor([[7, 3, 0], [5, 0, 9]]),
    tensor([13, 20, 21, 22, 23], "int64"),
    tensor([False, True], "bool"),
]
BUILD = BuildFrame(
    door="build",
    group=0,
    spec="FullAttentionSpec",
    block_size=4,
    builder="Builder",
    ubatch=0,
    numbers={"num_reqs": 2, "num_actual_tokens": 5, "max_query_len": 4, "max_seq_len": 6}
    | {"causal": True},
    tensors={
        "query_start_loc": 0,
        "query_start_loc_cpu": 0,
        "seq_lens": 1,
        "block_table_tensor": 2,
        "slot_mapping": 3,
        "is_prefilling": 4,
    },
)
SPLIT = SplitFrame(0, {"decode_threshold": 1}, [1, 1, 1, 4])
STEP = Step(step=1, tensors=TENSORS, builds=[BUILD], splits=[SPLIT])
END = End(steps=2, dropped=0, reason="exit")


def with_tensor(index, value):
    return msgspec.structs.replace(STEP, tensors=[*TENSORS[:index], value, *TENSORS[index + 1 :]])


def payloads(*frames):
    encoder = msgspec.msgpack.Encoder()
    return [one if isinstance(one, bytes) else encoder.encode(one) for one in frames]


def content(*frames):
    return b"".join(map(framed, payloads(*frames)))


def compressed(data):
    return zstandard.ZstdCompressor().compress(data)


def unfinished(*frames):
    """Return a stream that is flushed, and not ended: as after a kill."""
    writer = zstandard.ZstdCompressor().compressobj()
    data = writer.compress(content(*frames))
    return data + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)


@pytest.fixture
def file(tmp_path):
    def write(data, name="a.attnrec"):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def read(path):
    remarks = []
    return list(recorded_steps(path, remarks)), remarks


def results(path):
    steps, outcomes, notes = read_recordings([path], 10, 1, list(ALL.values()))
    found = {o.result.name: (o.result.verdict, o.result.cases) for o in outcomes}
    return steps, found, notes


def test_a_whole_file_is_read_and_compared(file):
    steps, found, [note] = results(file(compressed(content(HEADER, STEP, STEP, END))))
    assert found == {
        "build_slot_mapping": ("PASS", 2),
        "split_decodes_and_prefills": ("PASS", 2),
    }
    assert (steps[0].batch.query_lens, steps[0].batch.blocks) == ((1, 4), ((7, 3), (5,)))
    assert {step.source for step in steps} == {"a.attnrec#2,group=0", "a.attnrec#3,group=0"}
    assert note == "a.attnrec: 2 batches, 4 results compared"


def test_a_wrong_slot_and_a_wrong_split_are_findings(file):
    wrong = with_tensor(3, tensor([14, 20, 21, 22, 23], "int64"))
    wrong.splits = [SplitFrame(0, {"decode_threshold": 1}, [2, 0, 5, 0])]
    _, found, _ = results(file(compressed(content(HEADER, STEP, wrong, END))))
    assert {verdict for verdict, _ in found.values()} == {"FAIL"}
    assert len(found) == 2


def test_a_file_that_is_still_written_is_read_up_to_the_last_flush(file):
    steps, remarks = read(file(unfinished(HEADER, STEP, STEP)))
    assert len(steps) == 2
    assert remarks == [
        "cut off, killed or still being written: 2 whole steps read, 0 bytes behind them are no "
        "whole step"
    ]


def test_a_file_that_is_cut_anywhere_is_read_up_to_there(file):
    writer = zstandard.ZstdCompressor().compressobj()
    flushed, lengths = b"", []
    for one in [HEADER, *[STEP] * 40]:
        flushed += writer.compress(content(one)) + writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        lengths.append(len(flushed))
    for length in range(lengths[1], len(flushed), 7):
        steps, [remark] = read(file(flushed[:length]))
        assert len(steps) == sum(one <= length for one in lengths) - 1
        assert f"{len(steps)} whole steps read" in remark


def test_bytes_behind_the_last_whole_step_are_counted(file):
    cut = content(HEADER, STEP, STEP)[:-5]
    _, [remark] = read(file(compressed(cut)))
    lost = len(content(STEP)) - 5
    assert f"1 whole steps read, {lost} bytes behind them" in remark


def test_dropped_steps_and_an_error_of_the_recorder_are_told(file):
    end = End(steps=1, dropped=3, reason="OSError")
    _, remarks = read(file(compressed(content(HEADER, STEP, end))))
    assert remarks == [
        "3 steps dropped while recording: the queue was full",
        "the recorder was stopped by OSError",
    ]


def flipped(data, index):
    return data[:index] + bytes([data[index] ^ 0xFF]) + data[index + 1 :]


LATER = msgspec.to_builtins(HEADER) | {"version": 3, "groups": "of another form"}
LENGTH = len(content(HEADER, STEP))
MAP = msgspec.structs.replace
BAD_STEPS = {
    "shape": (with_tensor(1, Tensor("int32", [3], [1], bytes(8))), "with 8 bytes"),
    "huge": (with_tensor(1, Tensor("int32", [2**40, 2**40], [1], bytes(8))), "with 8 bytes"),
    "dtype": (with_tensor(1, Tensor("object", [1], [1], bytes(8))), "no known dtype"),
    "deep": (with_tensor(1, Tensor("int32", [1] * 9, [1], bytes(4))), "no known dtype and shape"),
    "bool": (with_tensor(4, Tensor("bool", [2], [1], b"\0\2")), "other bytes than 0 and 1"),
    "tensor": (MAP(STEP, builds=[MAP(BUILD, tensors={"seq_lens": 9})]), "names no tensor"),
    "split": (MAP(STEP, splits=[SplitFrame(4, {}, [])]), "names no build"),
}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"PK\3\4 something else", "line 1: not a recorded step"),
        (b"\x28\xb5\x2f\xfd not zstd", "frame 1: damaged"),
        (compressed(b""), "holds no whole step"),
        (compressed(content(HEADER)), "holds no whole step"),
        (compressed(content(HEADER, END)), "holds no whole step"),
        (compressed(content(LATER, STEP)), "version 3 of the format is later than 2"),
        (compressed(content({"schema": "x"}, STEP)), "frame 1: no header of attnproof.recording"),
        (compressed(content(HEADER, b"\xc1")), "frame 2: not a recorded step"),
        (compressed(content(HEADER, STEP, HEADER)), "frame 3: not a recorded step"),
        (compressed(content(HEADER, STEP) + PREFIX.pack(2**31, 0)), "more than a frame has"),
        (compressed(flipped(content(HEADER, STEP, STEP), LENGTH - 9)), "its checksum differs"),
        (
            compressed(content(MAP(HEADER, world={"decode_context": 2}), STEP)),
            "recorded with context parallelism",
        ),
        *[(compressed(content(HEADER, bad)), words) for bad, words in BAD_STEPS.values()],
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_of_usage(file, data, words):
    with pytest.raises(UsageError) as caught:
        read_recordings([file(data)], 10, 1, list(ALL.values()))
    assert str(caught.value).startswith("--recorded a.attnrec")
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_window_of_gigabytes_is_refused(file):
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
    data = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    with pytest.raises(RecordingError, match="frame 1: damaged"):
        read(file(data.compress(content(HEADER, STEP)) + data.flush()))


def test_a_stream_without_end_is_refused(file, monkeypatch):
    monkeypatch.setattr(stream, "_MOST_BYTES", 2000)
    with pytest.raises(RecordingError, match="more than 2000 bytes after decompression"):
        read(file(compressed(content(HEADER, *[STEP] * 50))))


def test_the_ranks_of_a_folder_are_read_each(file, tmp_path):
    for rank in range(2):
        header = MAP(HEADER, rank=rank)
        file(compressed(content(header, STEP, END)), f"vllm-rank{rank}-pid1.attnrec")
    file(b"another file", "notes.txt")
    assert [path.name for path in recording_files(tmp_path)] == [
        "vllm-rank0-pid1.attnrec",
        "vllm-rank1-pid1.attnrec",
    ]
    _, found, notes = results(tmp_path)
    assert len(notes) == 2
    assert {verdict for verdict, _ in found.values()} == {"PASS"}


@pytest.mark.parametrize(
    "change",
    [
        {"model": "OptForCausalLM"},
        {"engine_version": "0.11.2"},
        {"world": {"tensor": 4}},
        {"max_model_len": 512},
    ],
)
def test_a_folder_of_several_models_or_engines_is_refused(file, tmp_path, change):
    file(compressed(content(HEADER, STEP, END)), "a.attnrec")
    file(compressed(content(MAP(HEADER, **change), STEP, END)), "b.attnrec")
    with pytest.raises(UsageError) as caught:
        read_recordings([tmp_path], 10, 1, list(ALL.values()))
    assert "recordings of different engines or models" in str(caught.value)
    assert "a.attnrec of vllm 0.32.0, LlamaForCausalLM, 256 tokens" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_folder_without_recordings_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"a folder without files \*.attnrec"):
        read_recordings([tmp_path], 10, 1, list(ALL.values()))


def test_without_zstandard_the_extra_is_named(file, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(RecordingError, match=r'pip install "attnproof\[record\]"'):
        read(file(unfinished(HEADER, STEP)))
