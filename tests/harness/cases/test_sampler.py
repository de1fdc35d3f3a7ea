"""Sampled requests have the quantiles of the sampler's tables and of the real traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attnproof.harness.cases.steps.sampler import (
    LEVELS,
    PROFILES,
    batches_from_sampler,
    sample_requests,
)
from attnproof.harness.cases.traces.reading import read_trace

FILES = {
    "azure-conv": "azure2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake-conversation": "mooncake/conversation_trace.jsonl",
}


def hit_rate(prefixes: list[tuple[int, ...]]) -> float:
    """Return the share of hash blocks that an unbounded prefix cache would hold."""
    seen: set[int] = set()
    hits = 0
    for prefix in prefixes:
        hits += next((i for i, h in enumerate(prefix) if h not in seen), len(prefix))
        seen.update(prefix)
    return hits / sum(map(len, prefixes))


@pytest.mark.parametrize("name", PROFILES)
def test_samples_have_the_quantiles_of_their_profile(name: str) -> None:
    profile = PROFILES[name]
    requests = sample_requests(20_000, 5, name)
    for field, table in (
        ("input_tokens", profile.input_tokens),
        ("output_tokens", profile.output_tokens),
    ):
        values = np.array([getattr(request, field) for request in requests])
        assert table[0] <= values.min()
        assert values.max() <= table[-1]
        inner = slice(3, 10)
        assert np.quantile(values, LEVELS[inner]) == pytest.approx(table[inner], rel=0.12)
    gaps = np.diff([request.arrival_s for request in requests])
    assert 1 / gaps.mean() == pytest.approx(profile.rate, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(profile.arrival_cv, rel=0.05)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_equal_the_quantiles_of_the_traces(traces: Path, name: str) -> None:
    profile, requests = PROFILES[name], read_trace(traces / FILES[name])
    for field in ("input_tokens", "output_tokens"):
        values = [getattr(request, field) for request in requests]
        assert getattr(profile, field) == pytest.approx(np.quantile(values, LEVELS), abs=1)
    assert len(requests) / requests[-1].arrival_s == pytest.approx(profile.rate, rel=0.01)


def test_prefixes_are_shared_about_as_much_as_in_mooncake(traces: Path) -> None:
    real = hit_rate([r.prefix_hashes for r in read_trace(traces / FILES["mooncake-conversation"])])
    assert real == pytest.approx(0.366, abs=0.001)
    sampled = sample_requests(12_000, 1, "mooncake-conversation")
    assert hit_rate([r.prefix_hashes for r in sampled]) == pytest.approx(real, abs=0.1)


def test_a_hash_has_the_same_predecessors_in_every_prompt() -> None:
    before: dict[int, tuple[int, ...]] = {}
    for request in sample_requests(300, 2, "mooncake-conversation"):
        assert len(request.prefix_hashes) == -(-request.input_tokens // 512)
        for place, value in enumerate(request.prefix_hashes):
            assert (
                before.setdefault(value, request.prefix_hashes[:place])
                == (request.prefix_hashes[:place])
            )


def test_a_seed_always_gives_the_same_requests() -> None:
    assert sample_requests(50, 7) == sample_requests(50, 7) != sample_requests(50, 8)


def test_sampling_no_requests() -> None:
    assert sample_requests(0) == []


def test_an_unknown_profile_is_rejected() -> None:
    with pytest.raises(ValueError, match="profile: got 'x', expected one of azure-conv, mooncake"):
        sample_requests(1, profile="x")


def test_batches_of_sampled_requests() -> None:
    chosen = batches_from_sampler(20, seed=3, num_requests=40)
    assert len({item.source for item in chosen.batches}) == 20
    assert chosen.batches[0].source.startswith("sampled:azure-conv#default,step=")
    assert chosen == batches_from_sampler(20, seed=3, num_requests=40)


@pytest.mark.parametrize(("count", "requests"), [(4, 60), (51, 153), (300, 600)])
def test_more_steps_come_of_more_requests(count: int, requests: int) -> None:
    summary = batches_from_sampler(count).summary
    assert f"{requests} of {requests} requests each" in summary
