"""Tests of two calls at once, one of which stands still within the candidate's code."""

from __future__ import annotations

import signal
import threading

import pytest
import torch

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case
from attnproof.harness.operations import ALL
from attnproof.harness.oracles.overlap import judge, overlapped
from attnproof.harness.oracles.trial import Trial
from attnproof.harness.running.loading import offered_by

SLICE = "slice_query_start_locs"
BLOCKS = "BlockTables"
SCRATCH = torch.zeros(64, dtype=torch.int32)
LOCK = threading.Lock()
SETTING = threading.local()
SETTING.shift = 0


def right(query_start_loc, request_slice):
    return reference.slice_query_start_locs(query_start_loc, request_slice)


def with_scratch(query_start_loc, request_slice):
    offsets = right(query_start_loc, request_slice)
    SCRATCH[: len(offsets)] = offsets
    return SCRATCH[: len(offsets)].clone()


def with_lock(query_start_loc, request_slice):
    with LOCK:
        return with_scratch(query_start_loc, request_slice)


def with_setting(query_start_loc, request_slice):
    return right(query_start_loc, request_slice) + getattr(SETTING, "shift", 1)


def trial_of(function, *query_lens):
    batch = make_batch(list(query_lens), [3] * len(query_lens), 4)
    case = Case(SLICE, batch, {"start": 0, "stop": len(query_lens)})
    return Trial(ALL[SLICE], case, function, reference.slice_query_start_locs, "cpu")


def at_once(function):
    return overlapped(trial_of(function, 1, 2), trial_of(function, 3, 1))


def with_signal(query_start_loc, request_slice):
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    return right(query_start_loc, request_slice)


@pytest.mark.parametrize("function", [right, with_lock, with_signal])
def test_right_functions_are_not_disturbed(function):
    assert at_once(function) is None
    assert list(judge(None)) == []


@pytest.mark.parametrize(
    ("function", "seen"),
    [
        (with_scratch, "test_overlap.py:{line}: result[1] was 1 and is now 3"),
        (with_setting, "result[0] was 0 and is now 1"),
    ],
)
def test_state_of_a_module_or_a_thread(function, seen):
    line = with_scratch.__code__.co_firstlineno + 3  # behind the write to the scratch memory
    (failure,) = judge(at_once(function))
    assert seen.format(line=line) in failure.message
    assert (failure.oracle, failure.field) == ("determinism", "result")


def test_state_of_a_class_in_a_sequence():
    case = next(
        case for name, case in ALL[BLOCKS].inputs.boundaries() if not ALL[BLOCKS].why_unreal(case)
    )

    class Shared(reference.BlockTables):
        instances: tuple[object, ...] = ()

        def __init__(self, *arguments, **keywords):
            type(self).instances = (self,)
            super().__init__(*arguments, **keywords)

        def append_block_ids(self, *arguments, **keywords):
            for instance in self.instances:
                super(Shared, instance).append_block_ids(*arguments, **keywords)

    def outcome(table):
        module = type("Module", (), {BLOCKS: table})
        trials = [
            Trial(ALL[BLOCKS], case, offered_by(module, ALL[BLOCKS]), None, "cpu") for _ in range(2)
        ]
        return overlapped(*trials)

    assert outcome(reference.BlockTables) is None
    assert outcome(Shared) is not None
