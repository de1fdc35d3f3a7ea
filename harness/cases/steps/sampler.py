"""Requests drawn from published length statistics, for use without a trace.

The module holds a dozen quantiles per distribution and no row of a trace. The quantiles were
computed from

- AzureLLMInferenceTrace_conv.csv of Azure/AzurePublicDataset, licence CC-BY-4.0 (Patel et al.,
  Splitwise: Efficient Generative LLM Inference Using Phase Splitting, ISCA 2024);
- FAST25-release/traces/conversation_trace.jsonl of kvcache-ai/Mooncake, licence Apache-2.0
  (Qin et al., Mooncake: Trading More Storage for Less Computation, FAST 2025).
"""

from __future__ import annotations

import msgspec
import numpy as np

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.steps.from_trace import TraceBatches, batches_from_requests
from attnproof.harness.cases.traces.formats import TraceRequest

LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
"""Probabilities of the quantiles in the tables below."""
_PARENTS = 8
"""Number of earlier prompts that are tried for a shared prefix."""
_RECENT = 1000
"""Number of most recent prompts from which those prompts are drawn."""
_REQUESTS_PER_STEP, _FEWEST, _MOST = 3, 60, 600
"""Requests for each step that is chosen, and their least and largest number."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one workload.

    Input and output lengths are drawn independently: their rank correlation is 0.07 in both
    traces.
    """

    input_tokens: tuple[int, ...]
    """Quantiles at LEVELS."""
    output_tokens: tuple[int, ...]
    """Quantiles at LEVELS."""
    rate: float
    """Requests per second."""
    arrival_cv: float
    """Coefficient of variation of the time between arrivals; 1 is a Poisson process."""
    shared_prefix: tuple[float, ...] = ()
    """Quantiles at LEVELS of the share of a prompt's hash blocks that earlier prompts had."""
    tokens_per_hash: int = 0
    """Tokens of a hash block, 0 without data on shared prefixes."""


PROFILES: dict[str, Profile] = {
    "azure-conv": Profile(
        input_tokens=(2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 6179, 14050),
        output_tokens=(7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 954, 1000),
        rate=5.53,
        arrival_cv=1.09,
    ),
    "mooncake-conversation": Profile(
        input_tokens=(891, 894, 901, 964, 2306, 6909, 15367, 27367, 39550, 85400, 121300, 126195),
        output_tokens=(1, 3, 10, 24, 156, 350, 472, 597, 698, 1118, 2000, 2000),
        rate=3.40,
        # Arrivals are published in ticks of 3 s, which makes the file's own value (3.03)
        # meaningless. This one comes from counts in windows of 9 s, whose variance is 1.5
        # times their mean.
        arrival_cv=1.2,
        shared_prefix=(0.0, 0.007, 0.018, 0.027, 0.067, 0.333, 0.667, 0.929, 0.964, 0.995, 1, 1),
        tokens_per_hash=512,
    ),
}


def sample_requests(
    count: int, seed: int = 0, profile: str | Profile = "azure-conv"
) -> list[TraceRequest]:
    """Draw `count` requests of a profile, by arrival; the seed determines them.

    Log lengths are interpolated linearly between the quantiles. Raise ValueError for an
    unknown profile.
    """
    if isinstance(profile, str):
        if profile not in PROFILES:
            raise ValueError(f"profile: got {profile!r}, expected one of {', '.join(PROFILES)}")
        profile = PROFILES[profile]
    random = np.random.default_rng(seed)
    shape = 1 / profile.arrival_cv**2
    gaps = random.gamma(shape, 1 / (shape * profile.rate), count)
    arrivals = np.cumsum(gaps) - gaps[:1]
    inputs = _lengths(random, profile.input_tokens, count)
    outputs = _lengths(random, profile.output_tokens, count)
    hashes = _prefixes(random, profile, inputs)
    columns = zip(arrivals.tolist(), inputs, outputs, hashes, strict=True)
    return [TraceRequest(*column, profile.tokens_per_hash) for column in columns]


def batches_from_sampler(
    count: int = 200,
    seed: int = 0,
    profile: str = "azure-conv",
    config: SchedulerConfig | None = None,
    *,
    num_requests: int = 0,
) -> TraceBatches:
    """Choose `count` engine steps of a sampled workload as `batches_from_trace` does.

    It has `num_requests` requests, by default some for each step that is chosen.
    """
    num_requests = num_requests or max(_FEWEST, min(_MOST, _REQUESTS_PER_STEP * count))
    requests = sample_requests(num_requests, seed, profile)
    name = f"sampled:{profile}"
    return batches_from_requests(requests, name, count, seed, config, max_requests=0)


def _lengths(random: np.random.Generator, quantiles: tuple[int, ...], count: int) -> list[int]:
    drawn = np.exp(np.interp(random.random(count), LEVELS, np.log(quantiles)))
    lengths: list[int] = np.rint(drawn).astype(np.int64).tolist()
    return lengths


def _prefixes(
    random: np.random.Generator, profile: Profile, inputs: list[int]
) -> list[tuple[int, ...]]:
    """Draw the hash ids of every prompt: a prefix of an earlier prompt's ids, then new ids."""
    if not profile.tokens_per_hash:
        return [()] * len(inputs)
    shares = np.interp(random.random(len(inputs)), LEVELS, profile.shared_prefix).tolist()
    prefixes: list[tuple[int, ...]] = []
    fresh = 0
    for place, (length, share) in enumerate(zip(inputs, shares, strict=True)):
        total = -(-length // profile.tokens_per_hash)
        wanted = int(share * total)
        parents = random.integers(max(0, place - _RECENT), place, _PARENTS) if place else ()
        # The closest length is taken: otherwise the longest prompt would give every long prefix.
        parent = min((prefixes[i] for i in parents), key=lambda p: abs(len(p) - wanted), default=())
        shared = parent[:wanted]
        own = total - len(shared)
        prefixes.append((*shared, *range(fresh, fresh + own)))
        fresh += own
    return prefixes
