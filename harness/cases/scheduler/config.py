"""Configuration of the scheduler: limits, options and the duration of engine steps."""

from __future__ import annotations

from typing import Literal

import msgspec

VLLM_CAPTURE_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
"""Token counts for which vLLM captures CUDA graphs by default."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Coefficients of the duration of an engine step, all in seconds.

    The defaults are for Llama-3.1-8B (bf16) on an RTX 4090 and are compared with a measured
    run of vLLM (`tools/scheduler_validation.py`, docs/scheduler.md).
    """

    fixed_s: float = 0.016
    """Duration of any step: the weights are read once."""
    prefill_token_s: float = 90e-6
    """Duration per query token of a row that is not decoding."""
    decode_request_s: float = 106e-6
    """Duration per decoding row, its drafts included."""
    kv_token_s: float = 0.13e-6
    """Duration per token of context, counted for every row that attends to it."""

    def seconds(self, prefill_tokens: int, decode_requests: int, kv_tokens: int) -> float:
        """Return the duration of one engine step in seconds."""
        return (
            self.fixed_s
            + self.prefill_token_s * prefill_tokens
            + self.decode_request_s * decode_requests
            + self.kv_token_s * kv_tokens
        )


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and options, with vLLM's names and, if it has any, vLLM's defaults."""

    block_size: int = 16
    """Tokens per KV-cache block."""
    num_blocks: int = 8192
    """Blocks of the KV cache, the null block 0 included. vLLM measures it at startup."""
    max_num_seqs: int = 128
    """Maximum number of running requests."""
    max_num_batched_tokens: int = 2048
    """Token budget of an engine step."""
    max_model_len: int = 32768
    """Longest sequence in tokens, prompt and output together."""
    overlong: Literal["truncate", "reject"] = "truncate"
    """Treatment of requests beyond max_model_len: cut the prompt, then the output, or skip."""
    long_prefill_token_threshold: int = 0
    """Maximum tokens of one request in an engine step, 0 for no limit."""
    enable_prefix_caching: bool = True
    """True if equal prefixes share blocks, which a preempted request can find again."""
    scheduler_reserve_full_isl: bool = True
    """True if a request waits until its whole prompt fits, not only its first chunk."""
    num_speculative_tokens: int = 0
    """Draft tokens of a decoding request, verified in its next engine step."""
    acceptance_rate: float = 0.7
    """Probability that a draft token is accepted if all drafts before it are."""
    draft_rate: float = 1.0
    """Probability that a decoding request has drafts (n-gram drafters often find none)."""
    engine: Literal["0.11", "0.32"] = "0.32"
    """Release of vLLM whose rules hold: from 0.32 on, blocks without a hash are reused first, and
    a request without others is not limited by long_prefill_token_threshold."""
    sliding_window: int = 0
    """Tokens that a query sees, 0 for all: blocks before the window are the null block."""
    later: bool = False
    """True if batches have the fields of later engines."""
    capture_sizes: tuple[int, ...] = ()
    """Ascending token counts to which an engine step is padded; empty for no padding."""
    cost: StepCost = StepCost()
    """Coefficients of the duration of an engine step."""
    seed: int = 0
    """Seed of drafts and their acceptance."""

    def __post_init__(self) -> None:
        """Raise ValueError for limits that would keep a request from ever finishing."""
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected at least 1")
        decode = 1 + self.num_speculative_tokens
        if self.max_num_batched_tokens < decode:
            raise ValueError(
                f"max_num_batched_tokens: got {self.max_num_batched_tokens}, expected at least "
                f"{decode}, a token with its drafts"
            )
        if self.max_model_len < 2:
            raise ValueError(f"max_model_len: got {self.max_model_len}, expected at least 2")
        room = (self.num_blocks - 1) * self.block_size
        if room < self.max_model_len:
            raise ValueError(
                f"num_blocks: got {self.num_blocks} (room for {room} tokens), expected room for "
                f"one request of max_model_len {self.max_model_len}"
            )
