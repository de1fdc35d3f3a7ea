"""Small schedules computed by hand, and properties of every schedule."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnproof.harness.cases.scheduler.config import SchedulerConfig, StepCost
from attnproof.harness.cases.scheduler.scheduler import Scheduler
from attnproof.harness.cases.scheduler.step import REQUEST, Step
from attnproof.harness.cases.traces.formats import TraceRequest

LIMIT = 64


def config(**options: Any) -> SchedulerConfig:
    defaults: dict[str, Any] = {"block_size": 4, "num_blocks": 17, "max_model_len": LIMIT}
    return SchedulerConfig(**{**defaults, **options})


def lens(schedule: Scheduler) -> list[tuple[list[int], list[int]]]:
    return [(s.query_lens.tolist(), s.computed_lens.tolist()) for s in schedule]


def test_chunked_prefill_then_decodes_with_the_newer_request_behind() -> None:
    requests = [TraceRequest(0, 10, 3), TraceRequest(0, 3, 2)]
    assert lens(Scheduler(requests, config(max_num_batched_tokens=8))) == [
        ([8], [0]),
        ([2, 3], [8, 0]),
        ([1, 1], [10, 3]),
        ([1], [11]),
    ]


def test_long_prefill_threshold_lets_other_requests_run() -> None:
    requests = [TraceRequest(0, 10, 2), TraceRequest(0, 3, 2)]
    assert lens(Scheduler(requests, config(long_prefill_token_threshold=4))) == [
        ([4, 3], [0, 0]),
        ([4, 1], [4, 3]),
        ([2], [8]),
        ([1], [10]),
    ]


def test_a_full_prefix_hit_still_computes_the_last_block() -> None:
    hashed = {"prefix_hashes": (5, 6), "tokens_per_hash": 4}
    requests = [TraceRequest(0, 8, 1, **hashed), TraceRequest(100, 8, 1, **hashed)]
    schedule = Scheduler(requests, config())
    first, second = (step.batch() for step in schedule)
    assert (first.query_lens, second.query_lens, second.computed_lens) == ((8,), (4,), (4,))
    assert first.blocks[0][0] == second.blocks[0][0]
    assert first.blocks[0][1] != second.blocks[0][1]
    assert schedule.counts.cached_tokens == 4


def test_requests_of_one_engine_step_share_a_prefix() -> None:
    hashed = {"prefix_hashes": (5, 6, 7), "tokens_per_hash": 4}
    schedule = Scheduler([TraceRequest(0, 12, 2, **hashed)] * 2, config())
    batch = next(iter(schedule)).batch()
    assert batch.query_lens == (12, 4)
    assert batch.blocks[0][:2] == batch.blocks[1][:2]


def test_a_preempted_request_is_first_in_the_queue_and_computes_everything_again() -> None:
    # 16 blocks: both prompts fit (8 + 7), their first decodes (9 + 8) do not.
    requests = [TraceRequest(0, 32, 9), TraceRequest(0, 28, 9), TraceRequest(0, 4, 1)]
    schedule = Scheduler(requests, config(enable_prefix_caching=False, max_num_seqs=2))
    steps = list(schedule)
    assert schedule.counts.preemptions == 1
    taken = next(step for step in steps if step.num_preempted)
    assert (taken.query_lens.tolist(), taken.num_waiting) == ([1], 2)
    back = next(step for step in steps if step.index > taken.index and step.num_admitted)
    assert back.state[REQUEST].tolist() == [1, 2]
    assert back.query_lens.tolist() == [28 + 1, 4]
    assert [request.generated for request in schedule.served] == [9, 9, 1]


def test_a_preempted_request_finds_its_blocks_again() -> None:
    requests = [TraceRequest(0, 32, 9), TraceRequest(0, 28, 9)]
    schedule = Scheduler(requests, config())
    hits = [int(step.computed_lens[-1]) for step in schedule if step.num_admitted]
    assert schedule.counts.preemptions == 1
    assert hits[-1] > 0


def test_a_request_waits_until_its_whole_prompt_fits() -> None:
    requests = [TraceRequest(0, 40, 4), TraceRequest(0, 30, 2)]
    whole, chunk = (
        Scheduler(requests, config(scheduler_reserve_full_isl=reserve, max_num_batched_tokens=44))
        for reserve in (True, False)
    )
    assert next(iter(whole)).query_lens.tolist() == [40]
    assert next(iter(chunk)).query_lens.tolist() == [40, 4]


def test_all_speculative_tokens_are_accepted() -> None:
    options = {"num_speculative_tokens": 2, "acceptance_rate": 1.0}
    schedule = Scheduler([TraceRequest(0, 5, 7)], config(**options))
    assert lens(schedule) == [([5], [0]), ([3], [5]), ([3], [8])]
    assert schedule.served[0].generated == 7


def test_all_speculative_tokens_are_rejected() -> None:
    options = {"num_speculative_tokens": 2, "acceptance_rate": 0.0}
    assert lens(Scheduler([TraceRequest(0, 5, 4)], config(**options))) == [
        ([5], [0]),
        ([3], [5]),
        ([3], [6]),
        ([3], [7]),
    ]


def test_graph_padding() -> None:
    requests = [TraceRequest(0, 2, 2)] * 3
    prefill, decode = (
        step.padding for step in Scheduler(requests, config(capture_sizes=(1, 2, 4, 8)))
    )
    assert prefill == (0, 2)
    assert decode == (1, 1)
    assert [s.padding for s in Scheduler(requests, config(capture_sizes=(1, 2)))] == [(0, 0)] * 2


def test_graph_padding_of_speculative_decodes_fills_whole_requests() -> None:
    options = {"num_speculative_tokens": 2, "acceptance_rate": 1.0, "capture_sizes": (4, 8, 12)}
    steps = list(Scheduler([TraceRequest(0, 2, 4)] * 3, config(**options)))
    assert [step.query_lens.tolist() for step in steps] == [[2, 2, 2], [3, 3, 3]]
    assert [step.padding for step in steps] == [(0, 2), (1, 3)]
    rounded = Scheduler([TraceRequest(0, 2, 4)] * 2, config(**{**options, "capture_sizes": (8,)}))
    assert [step.padding for step in rounded] == [(0, 4), (1, 3)]


def test_overlong_requests_are_truncated_or_rejected() -> None:
    requests = [
        TraceRequest(0, 100, 4),
        TraceRequest(0, 100, 100),
        TraceRequest(0, 60, 100),
        TraceRequest(0, 3, 100),
        TraceRequest(0, 1, 2),
    ]
    cut = Scheduler(requests, config())
    lengths = [(r.input_tokens, r.output_tokens) for r in cut.served]
    assert lengths == [(60, 4), (32, 32), (32, 32), (3, 61), (1, 2)]
    assert cut.counts.truncated == 4
    left = Scheduler(requests, config(overlong="reject"))
    assert [r.request for r in left.served] == [4]
    assert left.counts.rejected == 4


def test_empty_prompts_and_outputs_count_as_one_token() -> None:
    schedule = Scheduler([TraceRequest(0, 0, 0)], config())
    assert lens(schedule) == [([1], [0])]


def test_without_requests_there_are_no_engine_steps() -> None:
    assert list(Scheduler([], config())) == []


def test_the_clock_follows_the_cost_and_waits_for_arrivals() -> None:
    cost = StepCost(fixed_s=1.0, prefill_token_s=0.1, decode_request_s=0.01, kv_token_s=0.001)
    schedule = Scheduler([TraceRequest(0, 10, 2), TraceRequest(50, 10, 1)], config(cost=cost))
    starts = [step.start_s for step in schedule]
    assert starts == pytest.approx([0, 2.01, 50])
    first = schedule.served[0]
    assert (first.scheduled_s, first.first_token_s) == pytest.approx((0, 2.01))
    assert first.finished_s == pytest.approx(2.01 + 1.021)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_blocks": 16}, "num_blocks: got 16 .room for 60 tokens., expected room for one"),
        ({"block_size": 0}, "block_size: got 0, expected at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs: got 0, expected at least 1"),
        ({"max_model_len": 1}, "max_model_len: got 1, expected at least 2"),
    ],
)
def test_limits_that_would_starve_a_request_are_rejected(
    options: dict[str, int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        config(**options)


@st.composite
def request_lists(draw: st.DrawFn) -> list[TraceRequest]:
    width = draw(st.sampled_from((0, 4, 6, 16)))
    requests = []
    for index in range(draw(st.integers(1, 10))):
        length = draw(st.integers(1, 70))
        hashes: tuple[int, ...] = ()
        if width:
            total = -(-length // width)
            family, shared = draw(st.integers(0, 1)), draw(st.integers(0, total))
            # A hash identifies all tokens before it: one chain per family, then private ids.
            chain = range(1000 * family, 1000 * family + shared)
            own = range(1000 * (index + 2), 1000 * (index + 2) + total - shared)
            hashes = (*chain, *own)
        arrival = draw(st.floats(0, 0.3))
        requests.append(TraceRequest(arrival, length, draw(st.integers(0, 25)), hashes, width))
    return requests


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    size = draw(st.sampled_from((1, 2, 4, 16)))
    least, drafts = LIMIT // size + 1, draw(st.integers(0, 3))
    return SchedulerConfig(
        block_size=size,
        num_blocks=draw(st.integers(least, 3 * least)),
        max_num_seqs=draw(st.integers(1, 6)),
        max_num_batched_tokens=draw(st.integers(1 + drafts, 80)),
        max_model_len=LIMIT,
        long_prefill_token_threshold=draw(st.sampled_from((0, 1, 7))),
        enable_prefix_caching=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
        num_speculative_tokens=drafts,
        draft_rate=draw(st.sampled_from((0.5, 1.0))),
        capture_sizes=draw(st.sampled_from(((), (1, 2, 4, 8)))),
        seed=draw(st.integers(0, 3)),
    )


def prefix(request: TraceRequest, tokens: int) -> object:
    """Return an object that is equal for requests whose first tokens are equal."""
    width = request.tokens_per_hash
    if width and tokens <= min(request.input_tokens, len(request.prefix_hashes) * width):
        return request.prefix_hashes[: -(-tokens // width)]
    return request.arrival_s, id(request)


def check_blocks(step: Step, requests: list[TraceRequest], pool_size: int) -> None:
    batch, size = step.batch(), step.config.block_size
    holders: dict[int, object] = {}
    for request, blocks, length in zip(
        step.state[REQUEST, step.order].tolist(),
        batch.blocks,
        step.seq_lens[step.order].tolist(),
        strict=True,
    ):
        assert len(blocks) == -(-length // size)
        assert len(set(blocks)) == len(blocks)
        for column, block in enumerate(blocks):
            assert 0 < block <= pool_size
            content = prefix(requests[request], (column + 1) * size)
            assert holders.setdefault(block, content) == content, "two requests own one block"
    if len(batch.blocks) == step.num_running:
        held = pool_size - step.num_free_blocks
        if step.config.num_speculative_tokens:
            assert held >= len(holders)
        else:
            assert held == len(holders)


@settings(max_examples=300, deadline=None)
@given(request_lists(), configs())
def test_properties_of_every_schedule(
    requests: list[TraceRequest], limits: SchedulerConfig
) -> None:
    schedule = Scheduler(requests, limits)
    computed: dict[int, int] = {}
    steps = 0
    for step in schedule:
        steps += 1
        assert 0 < step.num_tokens <= limits.max_num_batched_tokens
        assert 0 < len(step.query_lens) <= step.num_running <= limits.max_num_seqs
        assert (step.query_lens > 0).all()
        assert (step.seq_lens <= limits.max_model_len).all()
        check_blocks(step, requests, schedule.pool.size)
        rows = zip(
            step.state[REQUEST].tolist(),
            step.computed_lens.tolist(),
            step.query_lens.tolist(),
            strict=True,
        )
        for place, (request, start, query) in enumerate(rows):
            continued = place < len(step.query_lens) - step.num_admitted
            if continued and not limits.num_speculative_tokens:
                assert start == computed[request]
            computed[request] = start + query
    assert schedule.counts.steps == steps
    assert schedule.counts.finished == len(requests)
    assert schedule.pool.num_free == schedule.pool.size
    assert not any(map(schedule.pool.references, range(limits.num_blocks)))
    for served in schedule.served:
        assert served.generated == served.output_tokens
        assert served.arrival_s <= served.scheduled_s < served.first_token_s <= served.finished_s
    assert sum(r.preemptions for r in schedule.served) == schedule.counts.preemptions


@settings(max_examples=30, deadline=None)
@given(request_lists(), configs())
def test_a_schedule_is_the_same_every_time(
    requests: list[TraceRequest], limits: SchedulerConfig
) -> None:
    first = [msgspec.json.encode(step.batch()) for step in Scheduler(requests, limits)]
    assert first == [msgspec.json.encode(step.batch()) for step in Scheduler(requests, limits)]


def test_an_engine_step_does_not_change_when_the_schedule_continues() -> None:
    random = np.random.default_rng(3)
    requests = [
        TraceRequest(0, int(n), int(m)) for n, m in random.integers(1, 30, (40, 2)).tolist()
    ]
    pairs = [(step, step.batch()) for step in Scheduler(requests, config())]
    assert any(step.num_preempted for step, _ in pairs)
    assert all(step.batch() == batch for step, batch in pairs)


def test_a_lone_request_is_not_limited_by_the_long_prefill_threshold() -> None:
    limits = {"long_prefill_token_threshold": 4, "max_num_batched_tokens": 64}
    for engine, first in (("0.32", 12), ("0.11", 4)):
        schedule = Scheduler([TraceRequest(0, 12, 1)], config(engine=engine, **limits))
        assert next(iter(schedule)).query_lens.tolist() == [first]
        pair = Scheduler([TraceRequest(0, 12, 1)] * 2, config(engine=engine, **limits))
        assert next(iter(pair)).query_lens.tolist() == [4, 4]


def test_blocks_before_the_window_are_null() -> None:
    schedule = Scheduler(
        [TraceRequest(0, 8, 6)], config(block_size=2, num_blocks=40, sliding_window=4)
    )
    last = [step.batch() for step in schedule][-1]
    assert (last.computed_lens, last.query_lens) == ((12,), (1,))
    assert [block == 0 for block in last.blocks[0]] == [True] * 4 + [False] * 3
