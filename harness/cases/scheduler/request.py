"""State of one request in the scheduler, and the counts of a whole schedule."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.traces.formats import TraceRequest


class ServedRequest(msgspec.Struct):
    """Times and token counts of one request."""

    request: int
    """Index in the scheduler's list of requests."""
    arrival_s: float
    input_tokens: int
    """Prompt tokens after truncation."""
    output_tokens: int
    """Tokens to generate after truncation."""
    generated: int = 0
    """Tokens generated so far."""
    scheduled_s: float = -1.0
    """Start of its first engine step, -1 before."""
    first_token_s: float = -1.0
    """End of the engine step that computed its first token, -1 before."""
    finished_s: float = -1.0
    """End of its last engine step, -1 before."""
    preemptions: int = 0


class ScheduleCounts(msgspec.Struct):
    """Counts of a schedule so far."""

    steps: int = 0
    finished: int = 0
    preemptions: int = 0
    truncated: int = 0
    """Requests cut to max_model_len."""
    rejected: int = 0
    """Requests skipped because they are longer than max_model_len."""
    cached_tokens: int = 0
    """Tokens taken from the prefix cache."""


class LiveRequest:
    """A waiting or running request."""

    __slots__ = ("blocks", "keys", "known", "registered", "served")

    def __init__(self, served: ServedRequest, keys: list[int]) -> None:
        self.served = served
        self.keys = keys
        """Keys of the full blocks that other requests may share."""
        self.blocks: list[int] = []
        self.registered = 0
        """Number of leading blocks that are registered in the prefix cache."""
        self.known = served.input_tokens
        """Prompt and generated tokens of a waiting request."""


def accepted_requests(
    requests: Sequence[TraceRequest], config: SchedulerConfig, counts: ScheduleCounts
) -> list[ServedRequest]:
    """Return the requests to serve, by arrival, with lengths within max_model_len.

    Truncated and rejected requests are added to `counts`.
    """
    limit = config.max_model_len
    served = []
    for index, request in enumerate(requests):
        # An engine takes no empty prompt and always samples once.
        prompt, output = max(1, request.input_tokens), max(1, request.output_tokens)
        if prompt + output > limit:
            if config.overlong == "reject":
                counts.rejected += 1
                continue
            counts.truncated += 1
            output = min(output, max(limit - prompt, limit // 2))
            prompt = min(prompt, limit - output)
        served.append(ServedRequest(index, request.arrival_s, prompt, output))
    served.sort(key=lambda accepted: accepted.arrival_s)
    return served
