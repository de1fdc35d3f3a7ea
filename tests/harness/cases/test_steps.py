"""The selection of engine steps keeps rare structures in bounded memory."""

from __future__ import annotations

from collections import Counter

import pytest

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.scheduler import Scheduler
from attnproof.harness.cases.scheduler.step import Step
from attnproof.harness.cases.steps.from_trace import ENGINES
from attnproof.harness.cases.steps.sampler import sample_requests
from attnproof.harness.cases.steps.selection import StepReservoir, choose_steps
from attnproof.harness.cases.steps.signature import Signature, signature
from attnproof.harness.cases.traces.formats import TraceRequest


def steps_of(engine: str, count: int = 120) -> list[Step]:
    return list(Scheduler(sample_requests(count, seed=1), ENGINES[engine]))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_value_of_every_field_is_chosen(engine: str) -> None:
    steps = steps_of(engine)
    marks = [signature(step) for step in steps]
    seen = {value for mark in marks for value in enumerate(mark)}
    chosen = {value for index, _ in choose_steps(steps, 60) for value in enumerate(marks[index])}
    assert chosen == seen


def test_rare_structures_come_before_common_ones() -> None:
    steps = steps_of("default")
    frequency = Counter(signature(step) for step in steps)
    assert len(frequency) > 100
    chosen = choose_steps(steps, 100)
    often = sorted(frequency[signature(steps[index])] for index, _ in chosen)
    assert len({index for index, _ in chosen}) == 100
    even = sorted(frequency[signature(step)] for step in steps)
    assert often[50] <= 2 < even[len(even) // 2]


def test_a_chosen_batch_is_that_of_its_engine_step() -> None:
    steps = steps_of("tight")
    for index, batch in choose_steps(steps, 20):
        assert batch == steps[index].batch()
        assert sorted(batch.query_lens) == sorted(steps[index].query_lens.tolist())


def test_the_selection_depends_on_the_seed_only() -> None:
    steps = steps_of("speculative")
    indices = [[index for index, _ in choose_steps(steps, 40, seed)] for seed in (0, 0, 1)]
    assert indices[0] == indices[1] != indices[2]


def test_common_structures_fill_the_rest_of_the_selection() -> None:
    requests = [TraceRequest(0, 4, 200)]
    chosen = choose_steps(Scheduler(requests, ENGINES["default"]), 50)
    assert len({index for index, _ in chosen}) == 50


def test_fewer_engine_steps_than_requested() -> None:
    assert len(choose_steps(Scheduler([TraceRequest(0, 4, 3)], ENGINES["default"]), 50)) == 3
    assert choose_steps([], 5) == []


def test_the_reservoir_is_bounded_and_keeps_the_rarest_values() -> None:
    steps = steps_of("tight")
    reservoir = StepReservoir(10)
    for step in steps:
        reservoir.offer(step)
        assert reservoir.size <= 40
    assert len(reservoir.seen) > 200
    values = Counter(value for step in steps for value in enumerate(signature(step)))
    rarest = [value for value, _ in values.most_common()[-3:]]
    chosen = [signature(steps[index]) for index, _ in reservoir.choose(10)]
    assert all(any(mark[field] == value for mark in chosen) for field, value in rarest)


def test_large_engine_steps_are_skipped_and_counted() -> None:
    steps = steps_of("default")
    reservoir = StepReservoir(20, max_blocks=500, max_tokens=100)
    for step in steps:
        reservoir.offer(step)
    large = sum(step.num_blocks > 500 or step.num_tokens > 100 for step in steps)
    assert 0 < reservoir.too_large == large < len(steps)
    for _, batch in reservoir.choose(20):
        assert sum(map(len, batch.blocks)) <= 500
        assert batch.num_tokens <= 100


def test_signature_fields() -> None:
    config = SchedulerConfig(
        block_size=4,
        num_blocks=601,
        max_model_len=2400,
        max_num_batched_tokens=1100,
        capture_sizes=(1, 2, 4, 8),
    )
    shared = {"prefix_hashes": (1,), "tokens_per_hash": 8}
    requests = [TraceRequest(0, 1500, 2), TraceRequest(0, 8, 3, **shared)]
    requests += [TraceRequest(0.2, 10, 1, **shared)]
    marks = [signature(step) for step in Scheduler(requests, config)]
    zeros = Signature(*[0] * len(Signature._fields))
    assert marks == [
        # 1100 of 1500 tokens.
        zeros._replace(
            prefills=1, split=1, full=1, new_block=2, exact_block=2, crossing=1, longest=11
        ),
        # The other 400, and a prompt of two whole blocks.
        zeros._replace(prefills=2, continued=1, new_block=2, exact_block=2, longest=11),
        zeros._replace(decodes=2, new_block=2, longest=11),
        zeros._replace(decodes=1, longest=4),
        # Two tokens after a cached prefix of eight.
        zeros._replace(prefills=1, shared=2, new_block=2, longest=4),
    ]


def test_signature_of_preemption_speculation_and_padding() -> None:
    config = SchedulerConfig(
        block_size=4,
        num_blocks=17,
        max_model_len=64,
        num_speculative_tokens=2,
        acceptance_rate=0.0,
        capture_sizes=(1, 2, 4, 8),
        enable_prefix_caching=False,
    )
    requests = [TraceRequest(0, 32, 2), TraceRequest(0, 28, 2)]
    marks = [signature(step) for step in Scheduler(requests, config)]
    zeros = Signature(*[0] * len(Signature._fields))
    assert marks == [
        zeros._replace(prefills=2, new_block=2, exact_block=2, longest=6),
        # One request decodes with two drafts, the other is preempted.
        zeros._replace(decodes=1, drafts=1, padding=2, preempted=1, new_block=2, longest=6),
        zeros._replace(prefills=1, resumed=1, new_block=2, longest=5),
    ]
