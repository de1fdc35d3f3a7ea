"""Serve drawn requests by vLLM's scheduler and KV-cache manager, without a model (0.32, 0.33).

The scheduler is the engine's own; tokens are drawn where a model would sample them. Under
`attnproof record` the manager's calls are recorded, in seconds and without a GPU:

    attnproof record -- python tools/live_manager.py --kind window --drafts 2 --steps 300
"""

from __future__ import annotations

import argparse
import random
from types import SimpleNamespace
from typing import Any

import torch

BLOCK, LENGTH, ROOM = 16, 256, 8
"""Tokens of a block and of the longest request, requests that run at a time."""


def config_of(*, blocks: int, asynchronous: bool, drafts: int) -> Any:
    """Return a configuration of the engine with what its scheduler reads."""
    from vllm.config import CacheConfig, ObservabilityConfig, ParallelConfig, SchedulerConfig

    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    model = {"max_model_len": LENGTH, "runner_type": "generate"}
    never = ("uses_mrope", "is_diffusion", "is_encoder_decoder", "supports_multimodal_inputs")
    nothing = ("kv_events", "lora", "kv_transfer", "ec_transfer", "speculative", "diffusion")
    return SimpleNamespace(
        scheduler_config=SchedulerConfig(
            max_num_seqs=ROOM,
            max_num_batched_tokens=64,
            max_model_len=LENGTH,
            is_encoder_decoder=False,
            async_scheduling=asynchronous,
        ),
        cache_config=cache,
        parallel_config=ParallelConfig(),
        observability_config=ObservabilityConfig(),
        model_config=SimpleNamespace(
            **model, **dict.fromkeys(never, False), return_sampling_mask=False
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        **{f"{name}_config": None for name in nothing},
        is_mm_encoder_only=False,
        num_speculative_tokens=drafts,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        max_in_flight_tokens=64 * (1 + asynchronous),
        max_concurrent_batches=1 + asynchronous,
        use_v2_model_runner=False,
    )


def scheduler_of(kind: str, config: Any) -> Any:
    """Return vLLM's scheduler of groups of full attention, and beside it of `kind`."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        SlidingWindowSpec,
    )

    layer: dict[str, Any] = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
    specs: list[Any] = [FullAttentionSpec(block_size=BLOCK, **layer)]
    if kind == "window":
        specs.append(SlidingWindowSpec(block_size=BLOCK, sliding_window=40, **layer))
    groups = [KVCacheGroupSpec([f"layer.{n}"], spec) for n, spec in enumerate(specs)]
    register_all_kvcache_specs(config)
    cls = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
    blocks = KVCacheConfig(config.cache_config.num_gpu_blocks, [], groups)
    grammars = SimpleNamespace(
        accept_tokens=lambda *_: True,
        should_advance=lambda _: False,
        validate_tokens=lambda _, drafts: drafts,
    )
    return cls(config, blocks, grammars, BLOCK, log_stats=False)


class Requests:
    """Requests that share prefixes, ended and aborted ones among them."""

    def __init__(self, seed: int) -> None:
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        self._random = random.Random(seed)
        self._prompts: list[list[int]] = [[]]
        self._count = 0

    def request(self) -> Any:
        """Return a request whose first tokens are often those of an earlier one."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        draw = self._random
        shared = draw.choice(self._prompts[-8:])[: draw.randrange(LENGTH // 2)]
        prompt = shared + [draw.randrange(1000) for _ in range(draw.randint(1, 60))]
        self._prompts.append(prompt)
        self._count += 1
        limits = SamplingParams(max_tokens=draw.randint(1, 50), ignore_eos=True)
        return Request(f"request-{self._count}", prompt, limits, None, block_hasher=self._hasher)

    def sampled(self, drafts: int) -> list[int]:
        """Return the tokens of accepted ones of the drafts, and one behind them."""
        return [self._random.randrange(4) for _ in range(self._random.randint(1, drafts + 1))]


def serve(scheduler: Any, requests: Requests, steps: int, seed: int, drafts: int) -> None:
    """Run engine steps; with asynchronous scheduling a step is scheduled before the last ends."""
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import RequestStatus

    draw = random.Random(seed)
    waiting: list[Any] = []
    ahead = int(scheduler.scheduler_config.async_scheduling)
    for _ in range(steps):
        if draw.random() < 0.4 and len(scheduler.requests) < 3 * ROOM:
            scheduler.add_request(requests.request())
        if draw.random() < 0.02 and scheduler.requests:
            name = draw.choice(sorted(scheduler.requests))
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
        if draw.random() < 0.01:
            scheduler.reset_prefix_cache()
        scheduled = scheduler.schedule()
        # A step that ends before the request's last token samples none.
        chunks = {name for name, each in scheduler.requests.items() if each.is_prefill_chunk}
        waiting.append((scheduled, chunks))
        if len(waiting) <= ahead:
            continue
        step, chunks = waiting.pop(0)
        names = list(step.num_scheduled_tokens)
        guessed = step.scheduled_spec_decode_tokens
        tokens = [
            [] if name in chunks else requests.sampled(len(guessed.get(name, []))) for name in names
        ]
        index = {name: row for row, name in enumerate(names)}
        scheduler.update_from_output(step, ModelRunnerOutput(names, index, tokens))
        if drafts and not ahead:
            guesses = [[draw.randrange(4) for _ in range(drafts)] for _ in names]
            scheduler.update_draft_token_ids(DraftTokenIds(names, guesses))


def main() -> None:
    """Serve the requests that the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=("full", "window"), default="full")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--drafts", type=int, default=0)
    parser.add_argument("--asynchronous", action="store_true")
    options = parser.parse_args()
    from attnproof.harness.recorder.plugin import arm

    arm()  # vLLM loads its plugins with an engine, of which this is a part
    config = config_of(
        blocks=options.blocks, asynchronous=options.asynchronous, drafts=options.drafts
    )
    scheduler = scheduler_of(options.kind, config)
    serve(scheduler, Requests(options.seed), options.steps, options.seed, options.drafts)


if __name__ == "__main__":
    main()
