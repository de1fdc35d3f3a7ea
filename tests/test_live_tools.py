"""What the tools for live engines do without an engine: swap, compare, count inputs, end."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "tests" / "harness" / "recorder" / "data" / "llama-ngram.vllm-0.32.attnrec"


@pytest.fixture
def tool(monkeypatch):
    """Import a module of tools; forget all of them afterwards."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if name.startswith("live_"):
            del sys.modules[name]


@pytest.fixture
def engine(monkeypatch):
    """Two modules: one defines functions, the other has imported one of them."""
    definer, user = ModuleType("engine_utils"), ModuleType("engine_runner")
    exec("def split(batch): return ['theirs', batch]\ndef other(): return 0", definer.__dict__)
    definer.imported = exec  # not its own
    user.renamed = definer.split
    for module in (definer, user):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return SimpleNamespace(definer=definer, user=user)


def ours(**functions):
    return SimpleNamespace(**functions)


def test_a_function_is_replaced_wherever_it_was_imported_and_calls_are_counted(tool, engine):
    swap = tool("live_swap")
    switch = swap.Switch()
    offered = ours(split=lambda batch: ["ours", batch], imported=print, absent=print)
    names = swap.install(swap.swaps_of(offered, ["engine_utils"]), switch)
    assert names == ["split"]
    assert engine.definer.split(1) == ["ours", 1]
    assert engine.user.renamed(2) == ["ours", 2]
    assert switch.calls == {"split": 2}
    assert engine.definer.other() == 0


def test_the_switch_leads_back_to_the_engine_and_then_counts_nothing(tool, engine):
    swap = tool("live_swap")
    switch = swap.Switch()
    swap.install(swap.swaps_of(ours(split=lambda batch: ["ours", batch]), ["engine_utils"]), switch)
    switch.ours = False
    assert engine.user.renamed(3) == ["theirs", 3]
    assert not switch.calls["split"]
    assert switch.seconds > 0


class Metadata:
    def __init__(self, lengths, **fields):
        self.lengths = torch.tensor(lengths, dtype=torch.int32)
        self._cache = object()
        vars(self).update(fields)


@pytest.mark.parametrize(
    ("right", "got", "field"),
    [
        (Metadata([1, 2]), Metadata([1, 2]), ""),
        (Metadata([1, 2]), Metadata([1, 3]), "given.lengths"),
        (Metadata([1]), Metadata([1], causal=True), "given.causal"),
        (Metadata([1], parts=[Metadata([4])]), Metadata([1], parts=[Metadata([5])]), "parts.0."),
        (Metadata([]), Metadata([], most=None), "given.most"),
        (Metadata([1], most=np.int32(7)), Metadata([1], most=7), ""),
        (Metadata([1], most=7), Metadata([1], most=7.0), "given.most"),
        (Metadata([1], x=np.zeros(2, int)), Metadata([1], x=np.zeros((1, 2), int)), "given.x"),
        (Metadata([1], x=torch.ones(2).bfloat16()), Metadata([1], x=torch.ones(2)), "given.x"),
    ],
)
def test_metadata_is_compared_field_by_field(tool, right, got, field):
    digest = tool("live_digest")
    first, second = digest.digests(right, "given"), digest.digests(got, "given")
    found = digest.first_difference(first, second)
    assert field in found
    assert bool(found) == bool(field)


def seen(drop_in, tokens, builds):
    return drop_in.Seen(tokens=tokens, builds=builds)


def test_each_kind_of_difference_is_told_with_its_step(tool):
    drop_in = tool("live_drop_in")
    right = seen(drop_in, [{"a": (1,)}, {"a": (1, 2)}], [[{"made.x": "1"}], [{"given.y": "1"}]])
    same = seen(drop_in, [{"a": (1,)}, {"a": (1, 2)}], [[{"made.x": "1"}], [{"given.y": "1"}]])
    assert list(drop_in.differences(right, same)) == []
    other = seen(drop_in, [{"a": (1,)}, {"a": (1, 9)}], [[{"made.x": "2"}], []])
    assert list(drop_in.differences(right, other)) == [
        "step 1, build 0: made.x differs",
        "step 2: 1 builds without ours, 0 with ours",
        "step 2: the tokens of request a differ",
    ]


def test_only_what_builders_make_may_differ_between_two_runs_of_the_engine(tool):
    drop_in = tool("live_drop_in")
    right = seen(drop_in, [{}], [[{"given.y": "1", "made.address": "1", "made.x": "1"}]])
    again = seen(drop_in, [{}], [[{"given.y": "2", "made.address": "2", "made.x": "1"}]])
    volatile = drop_in.volatile_fields(right, again)
    assert volatile == {"made.address"}
    assert list(drop_in.differences(right, again, volatile)) == ["step 1, build 0: given.y differs"]


def test_the_inputs_of_a_recording_are_counted(tool):
    coverage = tool("live_coverage")
    filled = coverage.filled_cells([RECORDING])
    assert filled.batches == 48
    first, *lines = coverage.summary(filled)
    assert first.startswith("inputs: 48 recorded batches fill ")
    features = dict(line.strip().split(": ", 1) for line in lines)
    assert features["place of decodes"] == "3 of 3"
    assert features["block size"] == "1 of 7; never 1, 2 to 8, 16, 128 or 256, 512 or more, no " + (
        "power of 2"
    )
    assert "heads" not in " ".join(features)


def test_without_a_recording_nothing_is_filled(tool):
    coverage = tool("live_coverage")
    first, *_ = coverage.summary(coverage.filled_cells([]))
    assert first.startswith("inputs: 0 recorded batches fill 0 of ")


def test_every_feature_is_of_a_batch_or_of_arguments(tool):
    coverage = tool("live_coverage")
    assert {cell.key for cell in coverage.CELLS} > coverage.ARGUMENTS


@pytest.mark.parametrize(
    ("verdict", "steps", "code"), [(0, 1000, 0), (1, 1000, 1), (0, 900, 3), (1, 900, 1)]
)
def test_the_lane_ends_with_the_verdict_and_needs_its_steps(
    tool, monkeypatch, tmp_path, verdict, steps, code
):
    lane = tool("live_lane")
    monkeypatch.delenv("ATTNPROOF_TRACES", raising=False)
    monkeypatch.setattr(lane, "record", lambda *_: steps)
    monkeypatch.setattr(lane, "verify", lambda *_: verdict)
    monkeypatch.setattr(lane, "recording_files", lambda _: [RECORDING])
    words = ["--out", str(tmp_path), "--only", "chunked", "local", "--least", "2000"]
    assert lane.main(words) == code


def test_a_configuration_that_fails_ends_the_lane(tool, monkeypatch, tmp_path, capfd):
    lane = tool("live_lane")
    failed = SimpleNamespace(returncode=3, stdout="no step\n", stderr="")
    monkeypatch.setattr(lane.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match="local: exit code 3"):
        lane.record("local", tmp_path, 10, 1, "sampler")
    assert "no step" in capfd.readouterr().out


def test_traces_take_turns_with_the_sampler(tool, monkeypatch, tmp_path):
    lane = tool("live_lane")
    monkeypatch.delenv("ATTNPROOF_TRACES", raising=False)
    assert lane.sources() == ["sampler"]
    monkeypatch.setenv("ATTNPROOF_TRACES", str(tmp_path))
    with pytest.raises(SystemExit, match="no azure2023"):
        lane.sources()
    trace = tmp_path / "azure2023" / "a.csv"
    trace.parent.mkdir()
    trace.touch()
    assert lane.sources() == ["sampler", str(trace)]
