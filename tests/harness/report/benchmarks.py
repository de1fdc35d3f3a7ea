"""Benchmarks like those of `attnproof bench`, drawn from a seed; no candidate is run."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec

from attnproof.harness.model.timing import (
    BaselineResult,
    Bench,
    Comparison,
    Costs,
    Interval,
    Noise,
    Past,
    Regression,
    Step,
    StepComparison,
    Steps,
    Timing,
    Untimed,
    Workload,
)

OPERATIONS = (
    "make_local_attention_virtual_batches",
    "build_slot_mapping",
    "compute_causal_conv1d_metadata",
    "split_attn_metadata",
    "split_decodes_and_prefills",
    "make_kv_sharing_fast_prefill_common_attn_metadata",
)
COUNTS = (1, 8, 64, 256, 1024)
TRACE = "azure2023/AzureLLMInferenceTrace_code.csv"
NOISE = Noise(
    comparisons=200, declared=3, floor=0.021, minimum_effect=0.05, clock_resolution_ns=41.0
)


def workloads() -> list[Workload]:
    drawn = [
        Workload(name=f"{kind}, {n} requests", kind=kind, requests=n, tokens=n * tokens)
        for kind, tokens in (("decode", 1), ("mixed", 20), ("prefill", 120))
        for n in COUNTS
    ]
    return [*drawn, Workload(name=f"{TRACE} step 17", kind="trace", requests=37, tokens=412)]


def interval(samples: list[float]) -> Interval:
    ordered = sorted(samples)
    n = len(ordered)
    return Interval(
        median_ns=ordered[n // 2], low_ns=ordered[n // 3], high_ns=ordered[2 * n // 3], samples=n
    )


def timing(
    draw: random.Random,
    operation: str,
    candidate: str,
    workload: Workload,
    ns: float,
    **changes: Any,
) -> Timing:
    samples = [ns * math.exp(draw.gauss(0, 0.02)) for _ in range(31)]
    fields: dict[str, Any] = {
        "operation": operation,
        "section": "4",
        "candidate": candidate,
        "lane": "cpu",
        "workload": workload,
        "case_id": f"{draw.getrandbits(48):012x}",
        "calls": 20,
        "host_ns": samples,
        "host": interval(samples),
        "costs": Costs(
            allocations=3,
            allocated_bytes=96 + 12 * workload.requests,
            dispatches=4,
            copies=1,
            copied_bytes=4 * workload.requests,
        ),
    }
    return Timing(**(fields | changes))


def comparison(fast: Timing, slow: Timing) -> Comparison:
    ratio = slow.host.median_ns / fast.host.median_ns
    certain = abs(math.log(ratio)) > 0.05
    return Comparison(
        operation=fast.operation,
        workload=fast.workload.name,
        candidate=fast.candidate,
        peer=slow.candidate,
        clock="host",
        ratio=ratio,
        low=ratio * 0.97,
        high=ratio * 1.03,
        p_value=1e-9 if certain else 0.4,
        verdict=("faster" if ratio > 1 else "slower") if certain else "no evidence",
    )


def bench(operations: tuple[str, ...] = OPERATIONS, seed: int = 7, **changes: Any) -> Bench:
    """Return `optimized` against `vllm`: mostly faster, about equal in one operation."""
    draw = random.Random(seed)
    timings: list[Timing] = []
    comparisons = []
    for number, operation in enumerate(operations):
        gain = draw.choice((1.01, 2.2, 3.5, 6.0, 12.0))
        for workload in workloads():
            own = 2_000 + 400 * number + 30 * workload.requests + 0.8 * workload.tokens
            own *= 1.5 if number == 1 and workload.requests == 1 else 1.0
            theirs = (2_000 + 400 * number + 30 * workload.requests + 0.8 * workload.tokens) * (
                gain if number != 1 else 1.3
            )
            pair = [
                timing(draw, operation, "optimized", workload, own),
                timing(draw, operation, "vllm", workload, theirs),
            ]
            timings += pair
            comparisons.append(comparison(*pair))
    fields: dict[str, Any] = {
        "timings": timings,
        "comparisons": comparisons,
        "untimed": [
            Untimed(
                operation="batch_sequence", candidate="optimized", reason="a sequence of steps"
            ),
            Untimed(operation="batch_sequence", candidate="vllm", reason="a sequence of steps"),
            Untimed(operation="get_mla_dims", candidate="vllm", reason="not offered"),
        ],
        "noise": NOISE,
        "steps": [steps(draw, "optimized", 1.0), steps(draw, "vllm", 5.5)],
        "step_comparisons": [
            StepComparison(
                trace=TRACE,
                candidate="optimized",
                peer="vllm",
                geometric_mean=5.4,
                low=5.2,
                high=5.6,
                worst=2.1,
                worst_source=f"{TRACE} step 4",
            )
        ],
        "control_ns": [61_000 * math.exp(draw.gauss(0, 0.01)) for _ in range(60)],
        "seconds": 187.0,
    }
    return Bench(**(fields | changes))


def steps(draw: random.Random, candidate: str, factor: float) -> Steps:
    trace_steps = []
    for number in range(80):
        requests = max(1, round(math.exp(draw.uniform(0, 5.5))))
        ns = factor * (9_000 + 160 * requests) * math.exp(draw.gauss(0, 0.1))
        trace_steps.append(
            Step(
                source=f"{TRACE} step {number}",
                case_id=f"{number:012}",
                requests=requests,
                tokens=requests * 11,
                ns=[ns * math.exp(draw.gauss(0, 0.02)) for _ in range(7)],
            )
        )
    return Steps(
        trace=TRACE,
        candidate=candidate,
        operations=("build_slot_mapping", "split_attn_metadata"),
        left_out={"XFormersAttentionMetadataBuilder.build": "not offered by vllm"},
        steps=trace_steps,
    )


def regression(timing: Timing, **changes: Any) -> Regression:
    fields: dict[str, Any] = {
        "operation": timing.operation,
        "workload": timing.workload.name,
        "candidate": timing.candidate,
        "clock": "host",
        "ratio": 1.18,
        "low": 1.15,
        "high": 1.22,
        "p_value": 3e-8,
        "verdict": "slower",
    }
    return Regression(**(fields | changes))


def compared(result: Bench) -> Bench:
    """Compare with a baseline: one timing is slower, one has more allocations."""
    equal = {"ratio": 1.01, "low": 0.98, "high": 1.03, "p_value": 0.5, "verdict": "no evidence"}
    entries = [regression(t, **equal) for t in result.timings]
    entries[4] = regression(result.timings[4])
    entries[9] = regression(result.timings[9], **(equal | {"costs": "allocations 3 to 4"}))
    baseline = BaselineResult(
        name="main",
        state="compared",
        created="2025-01-01T00:00:00Z",
        regressions=entries,
        lost=["swap_blocks / optimized / decode, 8 requests"],
    )
    return msgspec.structs.replace(result, baseline=baseline)


def past(result: Bench, name: str, factor: float) -> Past:
    """Return a baseline in which `optimized` took `factor` times its present time."""
    return Past(
        name=name,
        created=f"2024-12-{len(name):02}T00:00:00Z",
        commit="89abcdef",
        control_ns=61_000.0,
        medians_ns={
            f"{t.operation} / {t.candidate} / {t.workload.name}": t.host.median_ns
            * (factor if t.candidate == "optimized" else 1.0)
            for t in result.timings
        },
    )
