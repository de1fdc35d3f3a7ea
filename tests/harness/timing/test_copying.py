"""Bytes and floating-point operations of a call, beside a copy of as many bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnproof import reference
from attnproof.harness.cases.batches.strategies import make_batch
from attnproof.harness.model.case import Case
from attnproof.harness.model.timing import Work
from attnproof.harness.operations import ALL
from attnproof.harness.operations.attention.prepared import LAYER
from attnproof.harness.timing.process.comparison import CandidateCalls
from attnproof.harness.timing.process.copying import LEAST_BYTES, work_of
from attnproof.harness.timing.process.steady import steady


def calls_of(case):
    return CandidateCalls(
        ALL[case.operation], case, getattr(reference, case.operation), "cpu", expected={}
    )


def amount(case):
    return ALL[case.operation].bench.work(*calls_of(case).call_and_result())


@pytest.mark.parametrize(("window", "keys", "products"), [(0, 5, 9), (2, 3, 4), (9, 5, 9)])
def test_the_work_of_attention_is_that_of_visible_keys(window, keys, products):
    """Two queries behind three computed tokens see four and five keys, or two each."""
    layer = LAYER | {"num_kv_heads": 2, "group": 3, "head_size": 8, "window": window}
    case = Case("paged_attention", make_batch([2], [3], 4), layer)
    cache, rows = 2 * keys * 2 * 8 * 2, 2 * 2 * 6 * 8 * 2
    assert amount(case) == Work(bytes=cache + rows, flops=4 * products * 6 * 8)


def test_the_work_of_a_copy_is_read_and_written():
    operation = ALL["copy_blocks"]
    case = next(operation.bench.cases(make_batch([1] * 8, [40] * 8, 16)))
    call = operation.call.prepare(case, 0, "cpu")
    cache = call["kv_caches"][0]
    block = cache[:, 0].numel() * cache.itemsize * len(call["kv_caches"])
    assert amount(case).bytes == 2 * len(call.facts.pairs) * block


def test_a_copy_is_timed_for_calls_whose_bytes_matter():
    case = next(ALL["copy_blocks"].bench.cases(make_batch([1] * 8, [40] * 8, 16)))
    calls = calls_of(case)
    with steady():
        work = work_of(calls, "cpu")
        small = replace(calls.operation.bench, work=lambda *_: Work(bytes=LEAST_BYTES - 1))
        assert (
            work_of(replace(calls, operation=replace(calls.operation, bench=small)), "cpu") is None
        )
        none = replace(calls.operation.bench, work=None)
        assert (
            work_of(replace(calls, operation=replace(calls.operation, bench=none)), "cpu") is None
        )
    assert work.bytes == amount(case).bytes
    assert work.copy_host_ns > 0
    assert work.copy_device_ns is None
    assert work.machine is None  # it computes nothing


def test_rates_of_the_machine_are_measured_once_for_calls_that_compute():
    case = dict(ALL["paged_attention"].bench.models())["Llama-3.1-8B"]
    with steady():
        works = [work_of(calls_of(case), "cpu") for _ in range(2)]
    rates = works[0].machine
    assert rates is works[1].machine
    assert rates.bytes_per_second > 1e8
    assert rates.flops_per_second > 1e9
