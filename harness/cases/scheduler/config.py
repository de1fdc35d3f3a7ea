"""What an engine's scheduler is told: limits, options, and how long a step takes."""

from __future__ import annotations

from typing import Literal

import msgspec

VLLM_CAPTURE_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Token counts for which vLLM captures CUDA graphs by default."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Duration of a step in seconds, linear in what it computes.

    The defaults are those of Llama-3.1-8B (bf16) on an RTX 4090, where a measured run of vLLM
    checks them (`tools/scheduler_validation.py`, docs/scheduler.md).
    """

    fixed_s: float = 0.016
    """Of every step: the weights are read once whatever the batch."""
    prefill_token_s: float = 90e-6
    """For each query token of a row that is not decoding."""
    decode_request_s: float = 106e-6
    """For each decoding row, its drafts included."""
    kv_token_s: float = 0.13e-6
    """For each token of context, counted for every row that attends to it."""

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int) -> float:
        """Duration of one step."""
        return (
            self.fixed_s
            + self.prefill_token_s * prefill_tokens
            + self.decode_request_s * decode_requests
            + self.kv_token_s * kv_tokens
        )


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and options under vLLM's names, with vLLM's defaults where it has any."""

    block_size: int = 16
    """Tokens per KV-cache block."""
    num_blocks: int = 8192
    """Blocks of the KV cache, the null block 0 included. vLLM measures it at start."""
    max_num_seqs: int = 128
    """Requests running at once."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step."""
    max_model_len: int = 32768
    """Longest sequence in tokens, prompt and output together."""
    overlong: Literal["truncate", "reject"] = "truncate"
    """What becomes of requests beyond max_model_len: prompt (then output) cut, or left out."""
    long_prefill_token_threshold: int = 0
    """Most tokens of one request in a step, 0 for no such limit."""
    enable_prefix_caching: bool = True
    """Whether blocks of equal prefixes are shared, and found again after a preemption."""
    scheduler_reserve_full_isl: bool = True
    """Whether a request waits until its whole prompt fits, not only its first chunk."""
    num_speculative_tokens: int = 0
    """Draft tokens of a decoding request, verified in its next step."""
    acceptance_rate: float = 0.7
    """Chance of a draft token, once all before it are accepted."""
    draft_rate: float = 1.0
    """Chance that a decoding request has a draft at all (n-gram drafters often find none)."""
    capture_sizes: tuple[int, ...] = ()
    """Ascending token counts to which a step is padded; empty for none."""
    cost: StepCost = StepCost()
    """How long a step takes."""
    seed: int = 0
    """Of drafts and their acceptance."""

    def __post_init__(self) -> None:
        """Raise ValueError for limits under which some request could never finish."""
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len: got {self.max_model_len}, expected at least 2")
        room = (self.num_blocks - 1) * self.block_size
        if room < self.max_model_len:
            raise ValueError(
                f"num_blocks: got {self.num_blocks} (room for {room} tokens), expected room for "
                f"one request of max_model_len {self.max_model_len}"
            )
