"""The life of one request under the scheduler, and what a whole schedule adds up to."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from attnproof.harness.cases.scheduler.config import SchedulerConfig
from attnproof.harness.cases.traces.formats import TraceRequest


class ServedRequest(msgspec.Struct):
    """What became of one request."""

    request: int
    """Its place in the list that the scheduler was given."""
    arrival_s: float
    input_tokens: int
    """Prompt tokens after truncation."""
    output_tokens: int
    """Tokens to generate after truncation."""
    generated: int = 0
    """Tokens generated so far."""
    scheduled_s: float = -1.0
    """Begin of its first step, -1 before."""
    first_token_s: float = -1.0
    """End of the step that gave its first token, -1 before."""
    finished_s: float = -1.0
    """End of its last step, -1 before."""
    preemptions: int = 0


class ScheduleCounts(msgspec.Struct):
    """What a schedule did so far."""

    steps: int = 0
    finished: int = 0
    preemptions: int = 0
    truncated: int = 0
    """Requests cut to max_model_len."""
    rejected: int = 0
    """Requests left out because they are longer than max_model_len."""
    cached_tokens: int = 0
    """Tokens that the prefix cache saved."""


class LiveRequest:
    """A request in the queue or running."""

    __slots__ = ("blocks", "keys", "known", "remembered", "served")

    def __init__(self, served: ServedRequest, keys: list[int]) -> None:
        self.served = served
        self.keys = keys
        """Keys of the full blocks that other requests may share."""
        self.blocks: list[int] = []
        self.remembered = 0
        """Leading blocks that the prefix cache knows."""
        self.known = served.input_tokens
        """Prompt and generated tokens while it waits."""


def accepted_requests(
    requests: Sequence[TraceRequest], config: SchedulerConfig, counts: ScheduleCounts
) -> list[ServedRequest]:
    """The requests to serve, with lengths that the engine can take; counts what it could not."""
    limit = config.max_model_len
    served = []
    for index, request in enumerate(requests):
        # An engine knows no empty prompt, and always samples once.
        prompt, output = max(1, request.input_tokens), max(1, request.output_tokens)
        if prompt + output > limit:
            if config.overlong == "reject":
                counts.rejected += 1
                continue
            counts.truncated += 1
            output = min(output, max(limit - prompt, limit // 2))
            prompt = min(prompt, limit - output)
        served.append(ServedRequest(index, request.arrival_s, prompt, output))
    served.sort(key=lambda one: one.arrival_s)
    return served
