"""Compare our scheduler with that of a live vLLM 0.32, step by step (docs/scheduler.md).

In an environment with vLLM (tools/live_engine.py says which): each named configuration runs
requests in the engine, and the same ones in our scheduler. Prints the first difference of each;
the exit code is 1 with one. `--out FILE` keeps the run of the last configuration.

    python tools/live_scheduler.py --steps 400
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import live_scenarios
import msgspec
from live_scenarios import SCENARIOS

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.scheduler.engine_run import Arrival, EngineRun, EngineStep, write_run
from attnproof.harness.cases.scheduler.guided import Comparison, compare_run


class Watch:
    """What a live scheduler is given and decides, of one step after another."""

    def __init__(self, scheduler: Any) -> None:
        self.steps: list[EngineStep] = []
        self._scheduler = scheduler
        self._numbers: dict[str, int] = {}
        self._prefixes: dict[tuple[int, ...], int] = {}
        self._arrived: list[Arrival] = []
        self._aborted: list[int] = []
        self._step: dict[str, Any] = {}
        for name in ("add_request", "finish_requests", "schedule", "update_from_output"):
            setattr(self, f"_{name}", getattr(scheduler, name))
            setattr(scheduler, name, getattr(self, name))

    def add_request(self, request: Any) -> Any:
        """Note a request, and add it."""
        self._numbers[request.request_id] = len(self._numbers)
        size = self._scheduler.block_size
        prompt = request.prompt_token_ids
        chain, ids = -1, []
        for end in range(size, len(prompt) + 1, size):
            key = (chain, *prompt[end - size : end])
            chain = self._prefixes.setdefault(key, len(self._prefixes))
            ids.append(chain)
        self._arrived.append(Arrival(len(prompt), request.max_tokens, tuple(ids)))
        return self._add_request(request)

    def finish_requests(self, request_ids: Any, *args: Any) -> Any:
        """Note the requests that are really aborted, and abort them."""
        ended = self._finish_requests(request_ids, *args)
        self._aborted += [self._numbers[request.request_id] for request in ended]
        return ended

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Note the drafts, schedule, and note the decisions."""
        scheduler, number = self._scheduler, self._numbers
        drafts = {
            number[request.request_id]: len(request.spec_token_ids)
            for request in scheduler.running
            if request.spec_token_ids
        }
        output = self._schedule(*args, **kwargs)
        manager, rows = scheduler.kv_cache_manager, output.num_scheduled_tokens
        self._step = {
            "arrived": tuple(self._arrived),
            "aborted": tuple(self._aborted),
            "drafts": drafts,
            "scheduled": tuple((number[name], tokens) for name, tokens in rows.items()),
            "blocks": tuple(tuple(manager.get_block_ids(name)[0]) for name in rows),
            "free": manager.block_pool.get_num_free_blocks(),
        }
        self._arrived, self._aborted = [], []
        return output

    def update_from_output(self, output: Any, model_output: Any) -> Any:
        """Note how many tokens were sampled, and apply them."""
        sampled = model_output.sampled_token_ids
        counts = {
            self._numbers[name]: len(sampled[row])
            for name, row in model_output.req_id_to_index.items()
            if sampled and len(sampled[row])
        }
        self.steps.append(EngineStep(**self._step, sampled=counts))
        return self._update_from_output(output, model_output)


def config_of(scheduler: Any) -> SchedulerConfig:
    """Return the configuration of a live scheduler."""
    theirs, cache = scheduler.scheduler_config, scheduler.cache_config
    return SchedulerConfig(
        block_size=scheduler.block_size,
        num_blocks=cache.num_gpu_blocks,
        max_num_seqs=scheduler.max_num_running_reqs,
        max_num_batched_tokens=scheduler.max_num_scheduled_tokens,
        max_model_len=scheduler.max_model_len,
        long_prefill_token_threshold=theirs.long_prefill_token_threshold,
        enable_prefix_caching=bool(cache.enable_prefix_caching),
        scheduler_reserve_full_isl=theirs.scheduler_reserve_full_isl,
        num_speculative_tokens=scheduler.num_spec_tokens,
        engine="0.32",
    )


def run_scenario(name: str, steps: int, seed: int) -> tuple[SchedulerConfig, list[EngineStep]]:
    """Run a scenario in the engine."""
    watched: list[Watch] = []

    def watch(engine: Any) -> None:
        watched.append(Watch(engine.engine_core.engine_core.scheduler))

    # Asynchronous scheduling adds a step to a request that ended; ours does not model it.
    engine, _ = live_scenarios.run(
        SCENARIOS[name], steps, seed, prepare=watch, async_scheduling=False
    )
    return config_of(engine.engine_core.engine_core.scheduler), watched[0].steps


def main(arguments: Iterable[str] | None = None) -> int:
    """Print the result of each scenario."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    differs = False
    for name in options.scenarios or SCENARIOS:
        # A second engine of one process fails after one that speculates.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as process:
            job = process.submit(run_scenario, name, options.steps, options.seed)
            config, steps = job.result()
        if options.out:
            command = f"python tools/live_scheduler.py {name} --steps {options.steps}"
            run = EngineRun(engine="vLLM 0.32.0", command=command, config=config)
            write_run(options.out, run, steps)
        comparison = compare_run(config, steps)
        differs |= comparison.difference is not None
        print(f"{name}: {comparison.difference or 'equal'}; {_counts(comparison)}", flush=True)
    return int(differs)


def _counts(comparison: Comparison) -> str:
    counts = msgspec.structs.asdict(comparison)
    del counts["difference"]
    return ", ".join(f"{name} {count}" for name, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
