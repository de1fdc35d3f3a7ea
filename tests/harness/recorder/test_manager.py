"""Calls of a KV-cache manager: recorded within an engine, judged by what the manager answered."""

from __future__ import annotations

import importlib
import random
import sys
from types import SimpleNamespace

import pytest
import zstandard

from attnproof import reference
from attnproof.harness.cases.recorded.reading import recorded_steps, recording_files
from attnproof.harness.operations import ALL
from attnproof.harness.oracles import judge
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.recorder import manager as manager_calls
from attnproof.harness.recorder import schema, writing
from attnproof.harness.recorder.recorder import Recorder
from attnproof.harness.recorder.settings import Settings
from attnproof.harness.recorder.vllm import hook_engine
from attnproof.harness.running.errors import UsageError
from attnproof.harness.running.loading import offered_by
from attnproof.harness.running.recordings import read_recordings
from attnproof.reference.shared.cache_groups import GroupRules

MANAGER = ALL["kv_manager"]
BLOCK, BLOCKS, LENGTH = 4, 24, 40


def serve(manager, request_class, seed=1, steps=120):
    """Serve requests that share prefixes, in a pool that is too small for all of them."""
    draw, running, prompts, count = random.Random(seed), [], [[]], 0
    for _ in range(steps):
        manager.new_step_starts()
        for request in running:
            new = len(request.token_ids) - request.num_computed_tokens
            if manager.allocate_slots(request, new) is None:
                leave(manager, running, request, finished=False)
                request.num_computed_tokens = 0
                continue
            request.num_computed_tokens += new
            request.token_ids.append(draw.randrange(2))
            if len(request.token_ids) >= LENGTH or draw.random() < 0.15:
                leave(manager, running, request, finished=True)
        if draw.random() < 0.5:
            shared = draw.choice(prompts)[: draw.randrange(16)]
            prompts.append(shared + [draw.randrange(9000, 9999) for _ in range(draw.randint(1, 9))])
            request = request_class(f"name-{count}", list(prompts[-1]))
            count += 1
            blocks, hits, _ = manager.get_computed_blocks(request)
            new = len(request.token_ids) - hits
            if manager.allocate_slots(request, new, hits, blocks) is not None:
                request.num_computed_tokens = len(request.token_ids)
                request.token_ids.append(draw.randrange(2))
                running.append(request)
        if draw.random() < 0.05 and running:
            manager.evict_blocks({manager.ours.get_block_ids(running[0].request_id)[0][0]})
        if draw.random() < 0.05:
            manager.reset_prefix_cache()


def leave(manager, running, request, *, finished):
    request.finished = finished
    manager.free(request)
    running.remove(request)


@pytest.fixture
def record(engine, tmp_path):
    """Serve requests by a manager with a planted mistake, if any; return the file."""
    recorders = []

    def run(cls=reference.KVCacheManager, *, limit=0, spec="FullAttentionSpec", blocks=BLOCKS):
        sys.modules.pop("vllm.v1.core.kv_cache_manager", None)  # hooked for the last folder
        module = importlib.import_module("vllm.v1.core.kv_cache_manager")
        folder = tmp_path / f"recording-{len(recorders)}"
        recorder = Recorder(Settings(folder, 1, limit))
        recorders.append(recorder)
        hook_engine(recorder)
        specs = SimpleNamespace(kv_cache_spec=type(spec, (module.FullAttentionSpec,), {})(BLOCK))
        config = SimpleNamespace(num_blocks=blocks, kv_cache_groups=[specs])
        engine_class = type("KVCacheManager", (module.KVCacheManager,), {"reference_class": cls})
        manager = engine_class(config, LENGTH)
        serve(manager, module.Request)
        calls = getattr(manager, manager_calls._CALLS)
        calls.stop("exit")
        [path] = recording_files(folder)
        return path

    return run


def outcome(path):
    _, outcomes, notes = read_recordings([path], 5, 1, [MANAGER])
    [held] = outcomes
    return held, notes


def test_the_answers_of_a_right_manager_agree(record):
    path = record()
    held, [note] = outcome(path)
    assert held.result.verdict == "PASS"
    assert held.result.cases > 300
    assert note.startswith(f"{path.name}: {held.result.cases} calls of a KV-cache manager in 11")


class LooseRules(GroupRules):
    """Does not look at the last token of a block: hits may be one block too long."""

    def prefix(self, request, block):
        number, tokens = super().prefix(request, block)
        return number, (block, *tokens[:-1])


class LooseHash(reference.KVCacheManager):
    """Has loose rules."""

    def __init__(self, *args):
        super().__init__(*args)
        self._groups = [LooseRules(**vars(group)) for group in self._groups]


class Leaking(reference.KVCacheManager):
    """Loses the blocks of a request that leaves."""

    def free(self, request):
        self._tables.pop(request.request_id, None)


class KeepsEvicted(reference.KVCacheManager):
    """Evicts nothing."""

    def evict_blocks(self, block_ids):
        pass


class ResetsNothing(reference.KVCacheManager):
    """Says that it has forgotten all prefixes."""

    def reset_prefix_cache(self):
        return True


class Shared(reference.KVCacheManager):
    """Gives the last tokens of every request one block."""

    def allocate_slots(self, request, *args):
        blocks = super().allocate_slots(request, *args)
        if blocks is not None:
            self._tables[request.request_id][0][-1] = 8
        return blocks


LONGER = "hits are longer than the cached prefix"
MISTAKES = {
    LooseHash: {LONGER},
    Leaking: {"free lacks a block"},
    KeepsEvicted: {LONGER},
    ResetsNothing: {"reset forgets prefixes while blocks are in use"},
    Shared: {"tables name other blocks than were allocated"},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_answer_is_found_at_its_call(record, mistake):
    path = record(mistake)
    held, _ = outcome(path)
    [finding] = held.findings
    assert (held.result.verdict, finding.diagnosis in MISTAKES[mistake]) == ("FAIL", True)
    frame = int(finding.source.rpartition("#")[2])
    [step] = [step for step in recorded_steps(path, []) if step.line == frame]
    assert finding.message.split(":")[0].split(" of ")[0] in {c.do for c in step.manager.calls}


def failures(case, manager):
    theirs = offered_by(reference, MANAGER)
    ours = theirs._replace(names=theirs.names | {"KVCacheManager": manager})
    return judge(Trial(MANAGER, case, ours, theirs, "cpu")).failures


@pytest.mark.parametrize("mistake", [LooseHash, Leaking, Shared])
def test_the_recorded_calls_are_a_case_that_shows_the_mistake(record, mistake):
    steps, [held], _ = read_recordings([record(mistake)], 5, 1, [MANAGER])
    [step] = steps
    assert step.origin == "recorded"
    for case in (step.case, held.findings[0].case):
        assert failures(case, reference.KVCacheManager) == ()
        assert failures(case, mistake)


def test_a_manager_that_is_too_large_for_a_case_is_judged(record):
    steps, [held], _ = read_recordings([record(blocks=300)], 5, 1, [MANAGER])
    assert (steps, held.result.verdict) == ([], "PASS")


def test_no_token_and_no_name_is_in_a_file(record):
    contents = zstandard.ZstdDecompressor().decompressobj().decompress(record().read_bytes())
    assert b"name-" not in contents
    tokens = [number.to_bytes(2, order) for number in (9007, 9500) for order in ("big", "little")]
    assert [contents.count(token) > 20 for token in tokens] == [False] * 4


def test_numbers_of_prefixes_are_equal_if_tokens_are_and_differ_between_files(record):
    first, second = (list(recorded_steps(record(), [])) for _ in range(2))
    prefixes = [
        [call.prefixes for step in steps for call in step.manager.calls if call.prefixes]
        for steps in (first, second)
    ]
    assert list(map(len, prefixes[0])) == list(map(len, prefixes[1]))
    assert set(prefixes[0]).isdisjoint(prefixes[1])
    heads = [number[:8] for number in prefixes[0]]
    assert len(set(heads)) < len(heads)  # requests share their first tokens


def test_a_file_that_is_cut_off_is_judged_up_to_its_last_whole_step(record, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "_FLUSH_S", 0)
    path = tmp_path / f"cut{schema.SUFFIX}"
    content = record().read_bytes()
    path.write_bytes(content[: len(content) // 2])
    held, [note] = outcome(path)
    assert held.result.verdict == "PASS"
    assert "cut off, killed or still being written" in note


def test_a_limit_ends_the_recording(record):
    held, [note] = outcome(record(limit=10))
    assert held.result.verdict == "PASS"
    assert "in 10 steps" in note


def test_a_group_that_is_not_specified_is_named(record):
    held, _ = outcome(record(spec="CrossAttentionSpec"))
    assert held.result.verdict == "UNVERIFIED"
    assert held.result.reason.endswith("a group of CrossAttentionSpec is not specified")


def test_a_call_of_a_request_that_was_never_added_is_named(record, monkeypatch):
    monkeypatch.setattr(manager_calls, "identity_of", lambda _: ("", {}, False))
    monkeypatch.setattr(manager_calls.Prefixes, "of", lambda *_: b"")
    held, _ = outcome(record())
    assert held.result.verdict == "UNVERIFIED"
    assert "get_computed_blocks of request 1, which no call before has added" in held.result.reason


def test_lost_calls_end_the_recording(record, monkeypatch, capfd):
    monkeypatch.setattr(writing, "_MOST_PENDING", 6000)
    monkeypatch.setattr(writing.Writer, "_run", lambda *_: None)  # it takes nothing
    path = record()
    with pytest.raises(UsageError, match="holds no whole step"):
        outcome(path)
    assert "stopped, the engine goes on: MemoryError: the queue is full" in capfd.readouterr().err


def test_a_file_has_a_largest_size(record, monkeypatch, capfd):
    monkeypatch.setattr(writing, "_MOST_BYTES", 100)
    monkeypatch.setattr(writing, "_FLUSH_S", 0)
    record()
    assert "which is the most" in capfd.readouterr().err
