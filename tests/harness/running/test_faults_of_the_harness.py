"""A fault of the harness in a candidate's process is named as one, with its traceback."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import msgspec
import pytest

from attnproof.harness.model.candidate import Candidate
from attnproof.harness.model.case import Batch, Case
from attnproof.harness.model.run import Cause
from attnproof.harness.operations import ALL
from attnproof.harness.operations.attention.prepared import LAYER
from attnproof.harness.oracles import attempt, cost
from attnproof.harness.running.cases import CaseFile, write_case
from attnproof.harness.running.exchange import memory
from attnproof.harness.running.processes.launcher import Launcher
from attnproof.harness.running.task import candidate_process
from attnproof.harness.running.task.candidate_process import CandidateUnloadableError
from attnproof.harness.running.task.workers import InvalidCaseError, Worker
from attnproof.harness.verbs.options import ReplayOptions
from attnproof.harness.verbs.replay import replay

SPLIT = "split_decodes_and_prefills"
CASE = Case(
    SPLIT,
    Batch(block_size=1, query_lens=(1,), computed_lens=(0,), blocks=((0,),)),
    {"decode_threshold": 1, "require_uniform": False},
)
BREAKS = f"""
import torch
from attnproof.reference import {SPLIT}
torch.from_numpy = None
"""
WIDE = Case(
    "paged_attention",
    Batch(block_size=1, query_lens=(1,), computed_lens=(255,), blocks=(tuple(range(256)),)),
    LAYER | {"head_size": 512},
)


def worker_of(target, operation, name="mine"):
    operations = {operation.name: operation}
    return Worker(Candidate(name, str(target)), operations, timeout_s=60, memory_bytes=4 << 30)


def with_prepare(operation, prepare):
    return replace(operation, call=replace(operation.call, prepare=prepare))


@pytest.fixture
def events(monkeypatch):
    """Names of what happens, in order: each fork of a launcher, each question to a worker."""
    found = []

    def watched(kind, name):
        original = getattr(kind, name)

        def call(*args, **kwargs):
            found.append(name)
            return original(*args, **kwargs)

        monkeypatch.setattr(kind, name, call)

    watched(Launcher, "_fork")
    watched(Worker, "_asked_about")
    return found


def test_a_case_that_the_harness_cannot_prepare_is_its_own_fault(examine_candidate, monkeypatch):
    operation = ALL[SPLIT]

    def prepare_badly(case, pattern, device):
        if case.batch.strided:
            raise RuntimeError("no such tensor")
        return operation.call.prepare(case, pattern, device)

    monkeypatch.setitem(ALL, SPLIT, with_prepare(operation, prepare_badly))
    result = examine_candidate("attnproof.reference", SPLIT).result
    assert (result.verdict, result.cause) == ("UNVERIFIED", Cause.INVALID_CASE)
    assert result.reason.startswith("the harness failed on case ")
    assert result.reason.endswith("RuntimeError: no such tensor")
    assert "in prepare_badly\n" in result.log


def test_a_case_that_the_harness_cannot_prepare_ends_no_process_of_a_candidate():
    operation = ALL[SPLIT]

    def prepare_badly(case, pattern, device):
        if case.params["require_uniform"]:
            raise RuntimeError("no such tensor")
        return operation.call.prepare(case, pattern, device)

    bad = msgspec.structs.replace(CASE, params=CASE.params | {"require_uniform": True})
    worker = worker_of("attnproof.optimized", with_prepare(operation, prepare_badly))
    try:
        with pytest.raises(InvalidCaseError, match="no such tensor"):
            worker.judge(bad)
        assert worker.judge(CASE).failures == ()
        assert worker.deaths == 0
    finally:
        worker.stop()


def test_an_oracle_that_fails_is_a_fault_of_the_harness():
    operation = ALL[SPLIT]

    def check_badly(call, outputs):
        raise RuntimeError("no such field")

    contract = replace(operation.contract, invariants=check_badly)
    worker = worker_of("attnproof.reference", replace(operation, contract=contract))
    try:
        with pytest.raises(InvalidCaseError, match="RuntimeError: no such field") as raised:
            worker.judge(CASE)
    finally:
        worker.stop()
    assert "in check_badly\n" in raised.value.log


def test_what_breaks_a_process_is_told_with_the_traceback_of_the_harness(tmp_path, events):
    path = tmp_path / "breaks.py"
    path.write_text(BREAKS, encoding="utf-8")
    worker = worker_of(path, ALL[SPLIT])
    try:
        [failure] = worker.judge(CASE).failures
    finally:
        worker.stop()
    assert failure.diagnosis == "breaks its process"
    assert "TypeError: 'NoneType' object is not callable" in failure.log
    # The process that judges may have used a device: then it must not fork another launcher.
    assert events == ["_fork", "_asked_about", "_asked_about"]


def test_all_launchers_of_a_replay_are_forked_before_anything_is_judged(tmp_path, events):
    path = tmp_path / "case.json"
    write_case(path, CaseFile(case=CASE))
    candidates = ["reference", "optimized"]
    assert replay(ReplayOptions(case=str(path), candidates=candidates, out=tmp_path)) == 0
    assert events[:3] == ["_fork", "_fork", "_asked_about"]
    assert "_fork" not in events[2:]


def test_a_package_that_cannot_be_imported_does_not_end_the_process():
    def load():
        raise RuntimeError("cannot initialise a device in a forked process")

    operation = ALL[SPLIT]
    built_in = replace(operation.built_in, load=load)
    worker = worker_of("attnproof.reference", replace(operation, built_in=built_in))
    try:
        assert worker.judge(CASE).failures == ()
    finally:
        worker.stop()


def test_a_process_that_fails_before_its_candidate_is_imported_says_why(monkeypatch):
    def serve(*_):
        raise RuntimeError("no such lane")

    monkeypatch.setattr(candidate_process, "serve", serve)
    with pytest.raises(CandidateUnloadableError, match="status 70: RuntimeError: no such lane"):
        worker_of("attnproof.reference", ALL[SPLIT])


def bytes_of_inputs():
    return sum(
        buffer.nbytes for buffer in ALL[WIDE.operation].call.prepare(WIDE, 0, "cpu").arena.buffers
    )


def test_a_call_that_may_not_wait_takes_no_memory_for_its_inputs(monkeypatch):
    """On a GPU a case has three calls; those of real size have room for the inputs of two."""
    monkeypatch.setattr(memory, "_SIZES", (bytes_of_inputs() * 5 // 2,))
    monkeypatch.setattr(cost, "checks", lambda _trial: 1)  # as on a GPU
    monkeypatch.setattr(attempt, "no_waiting", nullcontext)
    worker = worker_of("attnproof.optimized", ALL[WIDE.operation])
    try:
        assert worker.judge(WIDE).failures == ()
    finally:
        worker.stop()


def test_inputs_without_room_are_a_fault_of_the_harness(monkeypatch):
    monkeypatch.setattr(memory, "_SIZES", (bytes_of_inputs() * 3 // 2,))
    worker = worker_of("attnproof.optimized", ALL[WIDE.operation])
    try:
        with pytest.raises(
            InvalidCaseError, match=r"no room for [0-9]+ bytes in the memory shared"
        ):
            worker.judge(WIDE)
    finally:
        worker.stop()
