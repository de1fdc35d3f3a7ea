"""Named configurations of a live engine with their load (tools/live_engine.py).

attnproof record -- python tools/live_scenarios.py preemption --steps 300
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Callable, Iterable
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import live_engine
from live_engine import NGRAM, Lengths

from attnproof.harness.cases.steps.sampler import sample_requests
from attnproof.harness.cases.traces.formats import TraceRequest
from attnproof.harness.cases.traces.reading import read_trace

_LONGEST = 1500, 400
"""Most prompt and output tokens of a request from a trace or the sampler."""
_REQUESTS = 2000


class Scenario(NamedTuple):
    """A configuration of the engine, and its load."""

    requests: int
    """Requests in the engine at a time."""
    options: dict[str, Any]
    """Arguments of vLLM's `LLM`."""
    model: str = "llama"
    aborted: float = 0.0
    """Probability of a step that a request is aborted before it."""
    temperature: float = 0.0
    """Temperature at which every second request samples."""


_NGRAM = {"speculative_config": NGRAM}
_FEW_BLOCKS = {"num_gpu_blocks_override": 136}
_WHOLE = {"enable_prefix_caching": False}
_TIGHT = {"max_num_seqs": 24, "max_num_batched_tokens": 160}
SCENARIOS = {
    "chunked": Scenario(24, {"max_num_batched_tokens": 96, **_WHOLE}),
    "prefix": Scenario(24, {"num_gpu_blocks_override": 400}),
    "preemption": Scenario(24, {**_FEW_BLOCKS, **_WHOLE}),
    "preemption-prefix": Scenario(24, _FEW_BLOCKS),
    "ngram": Scenario(16, {**_NGRAM, **_WHOLE}, temperature=0.05),
    "ngram-preemption-prefix": Scenario(24, {**_NGRAM, **_FEW_BLOCKS}, temperature=0.05),
    "threshold": Scenario(16, {"long_prefill_token_threshold": 64}),
    "single": Scenario(1, {"long_prefill_token_threshold": 64}),
    "abort": Scenario(24, {"num_gpu_blocks_override": 200}, aborted=0.1),
    "queue": Scenario(40, {"max_num_seqs": 8, "max_num_batched_tokens": 128}, aborted=0.02),
    "all": Scenario(
        40,
        {
            **_NGRAM,
            **_TIGHT,
            "num_gpu_blocks_override": 160,
            "long_prefill_token_threshold": 96,
        },
        aborted=0.05,
        temperature=0.05,
    ),
}
"""Configurations with one group of blocks: those that our scheduler models."""
GROUPED = {
    "window": Scenario(24, {}, "gpt-oss", aborted=0.02),
    "local": Scenario(24, {}, "llama4", aborted=0.02),
    "conv": Scenario(24, _WHOLE, "lfm2", aborted=0.02),
}
"""Configurations with a group of blocks for each kind of layer."""
OTHERS = {
    "wide": Scenario(
        64,
        {"block_size": 128, "num_gpu_blocks_override": 1500, "max_num_batched_tokens": 4096},
    ),
    # On a CPU this attention takes whole prompts only.
    "latent": Scenario(
        8,
        {**_NGRAM, "block_size": 16, "max_num_batched_tokens": 4096},
        "deepseek",
        temperature=0.05,
    ),
}
"""Configurations with other sizes, or another kind of attention."""
ALL = SCENARIOS | GROUPED | OTHERS


def load(source: str, seed: int) -> Lengths | None:
    """Return the lengths of a source: `drawn`, `sampler` (published quantiles), or a trace."""
    if source == "drawn":
        return None
    if source == "sampler":
        return _cut(sample_requests(_REQUESTS, seed))
    return _cut(read_trace(Path(source))[:_REQUESTS])


def _cut(requests: Iterable[TraceRequest]) -> Lengths:
    prompt, output = _LONGEST
    return cycle(
        [
            (min(prompt, max(1, request.input_tokens)), min(output, max(1, request.output_tokens)))
            for request in requests
        ]
    )


def run(
    scenario: Scenario,
    steps: int,
    seed: int,
    source: str = "drawn",
    prepare: Callable[[Any], None] = lambda _: None,
    **options: Any,
) -> tuple[Any, list[float]]:
    """Run a scenario; return the engine, and the time of each step in seconds.

    `prepare` gets the engine before its first step; `options` are further arguments of `LLM`.
    """
    os.environ.update({**live_engine.ENVIRONMENT, **os.environ})
    with tempfile.TemporaryDirectory() as folder:
        options = {**scenario.options, **options}
        engine = live_engine.make_engine(Path(folder), scenario.requests, scenario.model, **options)
    prepare(engine)
    times = live_engine.drive(
        engine,
        scenario.requests,
        steps,
        seed,
        load(source, seed),
        scenario.aborted,
        scenario.temperature,
    )
    return engine, times


def main() -> None:
    """Run one scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=ALL)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--lengths", default="drawn", help="drawn, sampler or a trace")
    options = parser.parse_args()
    _, times = run(ALL[options.scenario], options.steps, options.seed, options.lengths)
    print(f"{options.scenario}: {len(times)} steps in {sum(times):.1f} s, seed {options.seed}")


if __name__ == "__main__":
    main()
