"""Compare our scheduler with the class of an installed vLLM 0.32, on drawn configurations.

No model runs: sampled tokens and drafts are drawn. tools/live_scheduler.py compares live engines.
`--out FOLDER` keeps the runs.

    python tools/live_scheduler_fuzz.py --runs 500
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import live_engine
from live_scheduler import Watch, config_of

from attnproof.harness.cases.scheduler.engine_run import EngineRun, EngineStep, write_run
from attnproof.harness.cases.scheduler.guided import compare_run

_LONGEST = 256
_TOKENS = 30
"""Size of the vocabulary."""


def base_config() -> Any:
    """Return vLLM's configuration of a model of which only the configuration exists."""
    from vllm.engine.arg_utils import EngineArgs

    with tempfile.TemporaryDirectory() as folder:
        config = json.dumps(live_engine.CONFIGS["llama"])
        (Path(folder) / "config.json").write_text(config, encoding="utf-8")
        arguments = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True}
        chosen = {"async_scheduling": False, "block_size": 32, "max_model_len": _LONGEST}
        speculation = {"speculative_config": live_engine.NGRAM}
        return EngineArgs(model=folder, **arguments, **chosen, **speculation).create_engine_config()


def make_scheduler(config: Any, draw: random.Random) -> Any:
    """Return a scheduler of vLLM with drawn limits."""
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    size = draw.choice((1, 2, 4, 16))
    least = _LONGEST // size + 1
    limits, cache = config.scheduler_config, config.cache_config
    limits.max_num_seqs = draw.randint(1, 8)
    limits.max_num_batched_tokens = draw.choice((8, 17, 64, 200, 1000))
    limits.max_num_scheduled_tokens = None
    limits.long_prefill_token_threshold = draw.choice((0, 0, 5, 40))
    limits.scheduler_reserve_full_isl = draw.random() < 0.7
    cache.enable_prefix_caching = draw.random() < 0.7
    cache.block_size = size
    cache.num_gpu_blocks = draw.randint(least, 2 * least)
    config.speculative_config.num_speculative_tokens = draw.randint(1, 4)
    speculation = config.speculative_config
    if draw.random() < 0.5:
        config.speculative_config = None
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=cache.num_gpu_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
    )
    config.speculative_config = speculation
    return scheduler


def run_once(config: Any, seed: int) -> tuple[Any, list[EngineStep]]:
    """Run drawn requests through a scheduler of vLLM; return it and its steps."""
    draw = random.Random(seed)
    scheduler = make_scheduler(config, draw)
    watch = Watch(scheduler)
    waiting = draw.randint(1, 30)
    aborted = draw.choice((0, 0, 0.1))
    shared = [draw.randrange(_TOKENS) for _ in range(100)]
    alive: list[Any] = []
    while waiting or scheduler.has_unfinished_requests():
        while waiting and (draw.random() < 0.5 or not scheduler.has_unfinished_requests()):
            waiting -= 1
            prompt = shared[: draw.choice((0, 40, 64, 99))]
            prompt = prompt + [draw.randrange(_TOKENS) for _ in range(draw.choice((1, 9, 90)))]
            if draw.random() < 0.3:
                prompt = prompt[: draw.randint(1, len(prompt))]
            output = draw.randint(1, _LONGEST - len(prompt) if draw.random() < 0.3 else 30)
            alive.append(_request(str(len(alive)), prompt, output, scheduler))
            scheduler.add_request(alive[-1])
        if alive and draw.random() < aborted:
            from vllm.v1.request import RequestStatus

            name = draw.choice(alive).request_id
            scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            if not scheduler.has_unfinished_requests():
                continue
        output = scheduler.schedule()
        _answer(scheduler, output, draw)
    return scheduler, watch.steps


def _request(name: str, prompt: list[int], output: int, scheduler: Any) -> Any:
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    return Request(
        request_id=name,
        prompt_token_ids=prompt,
        sampling_params=SamplingParams(max_tokens=output, temperature=0, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher(scheduler.block_size, sha256),
    )


def _answer(scheduler: Any, output: Any, draw: random.Random) -> None:
    """Sample tokens and drafts for the scheduled requests that are computed."""
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

    names = list(output.num_scheduled_tokens)
    sampled, drafts = [], []
    for name in names:
        request = scheduler.requests[name]
        draft_tokens = output.scheduled_spec_decode_tokens.get(name, ())
        new_ids: list[int] = []
        if request.num_computed_tokens >= request.num_tokens:
            real = sum(token >= 0 for token in draft_tokens)
            new_ids = [10_000 + draw.randrange(1 << 30) for _ in range(1 + draw.randint(0, real))]
        sampled.append(new_ids)
        room = scheduler.max_model_len - request.num_tokens - len(new_ids)
        count = max(0, min(draw.randint(0, scheduler.num_spec_tokens), room))
        drafts.append([draw.randrange(_TOKENS) for _ in range(count)])
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: row for row, name in enumerate(names)},
            sampled_token_ids=sampled,
        ),
    )
    if scheduler.num_spec_tokens:
        scheduler.update_draft_token_ids(DraftTokenIds(names, drafts))


def main() -> int:
    """Print the first differences, and the number of compared steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.update({**live_engine.ENVIRONMENT, **os.environ})
    config = base_config()
    differences = steps = preemptions = 0
    for seed in range(options.seed, options.seed + options.runs):
        scheduler, run = run_once(config, seed)
        ours = config_of(scheduler)
        if options.out:
            command = f"python tools/live_scheduler_fuzz.py --runs 1 --seed {seed}"
            header = EngineRun(engine="Scheduler of vLLM 0.32.0", command=command, config=ours)
            write_run(options.out / f"drawn-{seed}.vllm-0.32.jsonl.gz", header, run)
        comparison = compare_run(ours, run)
        steps += comparison.steps
        preemptions += comparison.preemptions
        if comparison.difference:
            differences += 1
            print(f"seed {seed}: {comparison.difference}; {ours}", flush=True)
    print(
        f"{options.runs} runs, {differences} with a difference; "
        f"{steps} steps, {preemptions} preemptions"
    )
    return int(differences > 0)


if __name__ == "__main__":
    sys.exit(main())
