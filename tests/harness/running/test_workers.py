"""The parent's side of a worker: what is made of a reply that comes too late."""

from __future__ import annotations

import pytest

from harness.model.case import Batch, Case
from harness.operations import ALL
from harness.running.candidates import resolve
from harness.running.workers import Worker

SPLIT = "split_decodes_and_prefills"
CASE = Case(
    SPLIT,
    Batch(block_size=1, query_lens=(1,), computed_lens=(0,), blocks=((0,),)),
    {"decode_threshold": 1, "require_uniform": False},
)


@pytest.fixture
def impatient():
    """A worker that waits for nothing but the first reply."""
    [candidate] = resolve(["reference"], "cpu")
    worker = Worker(candidate, {SPLIT: ALL[SPLIT]}, timeout_s=0, memory_bytes=4 << 30)
    yield worker
    worker.stop()


def test_a_reply_that_comes_too_late_is_a_hang_and_no_wait_for_ever(impatient):
    assert impatient.judge(CASE).failures == ()
    for deaths in (1, 2):
        [failure] = impatient.judge(CASE).failures
        assert failure.diagnosis == "does not answer within 0 s"
        assert impatient.deaths == deaths
